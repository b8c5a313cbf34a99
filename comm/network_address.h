#pragma once

#include <absl/status/status.h>
#include <absl/status/statusor.h>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include <chrono>
#include <string>
#include <vector>

namespace lockstep {

/// The network interfaces that the user has chosen for what goes between the ranks: $LOCKSTEP_SOCKET_IFNAME, else
/// $GLOO_SOCKET_IFNAME, as names with commas between them; none when neither is set. InvalidArgument for an interface
/// that isn't there or has no address; it lists those that have one.
absl::StatusOr<std::vector<std::string>> ChosenInterfaces();

/// The address at which other ranks reach this one: that of the first of `interfaces`, if this rank has chosen some,
/// else the address that this host has on the way to `master`, the host of the store. Where that is loopback, on the
/// master's own host if it is told to be "localhost" or resolves its name to 127.0.1.1, the one on the way to a rank of
/// another host; loopback when all ranks are here. An empty `master` (a store that has no address) stands for what this
/// host's own name resolves to. Empty when the interfaces have no address that others could be told.
/// Every rank calls it, and says its address in `store`, which must be new to this call; it waits for others only where
/// it has to. Unavailable when they don't come within `timeout`, or this host has no way to `master`.
absl::StatusOr<std::string> AddressForRanks(c10d::Store& store, int rank, int world_size, const std::string& master,
                                            const std::vector<std::string>& interfaces,
                                            std::chrono::milliseconds timeout);

}  // namespace lockstep
