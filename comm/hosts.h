#pragma once

#include <absl/status/statusor.h>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include <chrono>
#include <string>
#include <vector>

namespace lockstep {

/// Which ranks of a group are on one host.
struct Hosts {
  std::vector<int> of;  ///< Number of each rank's host; hosts are counted in the order of their lowest ranks.

  int count() const;
  /// In rising order.
  std::vector<int> ranks(int host) const;
  /// "0, 1 | 2, 3"
  std::string Text() const;
};

/// Finds it out by trying: two ranks share a host when the one can reach the other's Unix socket, which takes one
/// kernel and one network namespace, as shared memory does here. Containers that share neither are hosts of their own;
/// names and addresses say nothing. Collective: the ranks meet in `store`, and all have the same answer. Unavailable
/// when ranks don't come within `timeout`.
absl::StatusOr<Hosts> FindHosts(const c10::intrusive_ptr<c10d::Store>& store, int rank, int world_size,
                                std::chrono::milliseconds timeout);

}  // namespace lockstep
