#pragma once

#include <absl/status/statusor.h>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include <chrono>
#include <string>

namespace lockstep {

/// The place where the ranks of a run meet.
struct Rendezvous {
  c10::intrusive_ptr<c10d::Store> store;
  int rank = 0;
  int world_size = 1;
  std::string host;  ///< Host of the store as the user gave it; empty for file://.
};

/// Opens the store that `init_method` names:
///  - `env://`: host and port from MASTER_ADDR and MASTER_PORT; rank 0 holds the store unless the launcher does;
///  - `tcp://HOST:PORT[?rank=R&world_size=N]`: rank 0 holds the store there;
///  - `file:///PATH[?rank=R&world_size=N]`: a file on a file system that all ranks share; it must be new.
/// `rank` and `world_size` of -1 are taken from the URL, else from RANK and WORLD_SIZE.
/// Errors: InvalidArgument for a malformed URL or numbers that don't fit, also with those of other ranks, AlreadyExists
/// for a rank that is there twice (both where rank 0 holds the store), Unavailable when the port is in use or
/// the store can't be reached within `timeout`.
absl::StatusOr<Rendezvous> OpenRendezvous(const std::string& init_method, int rank, int world_size,
                                          std::chrono::milliseconds timeout);

}  // namespace lockstep
