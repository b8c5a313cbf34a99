#pragma once

#include <absl/status/statusor.h>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "lockstep/comm/collectives.h"

namespace lockstep {

class FlightRecorder;

struct ProcessGroupOptions {
  std::string init_method = "env://";     ///< See OpenRendezvous; ignored when `store` is given.
  c10::intrusive_ptr<c10d::Store> store;  ///< A store of the caller's; rank and world_size are then required.
  int rank = -1;                          ///< -1: from the URL or the environment.
  int world_size = -1;                    ///< -1: from the URL or the environment.
  std::string backend = "auto";           ///< See ParseBackend.
  bool cuda = false;                      ///< Tensors will live on CUDA devices too.
  std::chrono::milliseconds timeout = std::chrono::seconds(1800);  ///< Of the rendezvous and of every collective.
  /// Before each collective the ranks compare what they are about to do, tensors' shapes included; a difference is an
  /// error that names the ranks. Costs a small collective each time on Gloo and NCCL, next to nothing on shm.
  bool check_collectives = false;
  /// Keeps the last collectives and writes them to its folder when one fails; null: nothing is kept.
  std::shared_ptr<FlightRecorder> recorder;
};

/// Makes the process group of this run. On CUDA the caller has made its device the current one. CPU tensors always have
/// a backend, also beside NCCL; which one was taken is said once in the log, by rank 0. In a world of one the result is
/// null and nothing is opened. Collective otherwise. Errors: InvalidArgument (unknown backend, wrong numbers),
/// Unavailable (port in use, ranks that don't come), FailedPrecondition (NCCL in a program without CUDA, shm between
/// ranks that share no memory).
absl::StatusOr<ProcessGroupPtr> InitProcessGroup(const ProcessGroupOptions& options = {});

/// A group of some of the ranks of `parent`, called by those ranks only; `ranks` is the same list on all of them, and
/// says who has which rank in the new group. A list of one gives null. Groups are independent: each may be driven by a
/// thread of its own. Of `options` the store, the ranks and the init method are not looked at. Collective for
/// those ranks. Errors: those of InitProcessGroup, and InvalidArgument when this rank isn't in the list or the list is
/// wrong.
absl::StatusOr<ProcessGroupPtr> NewSubGroup(const ProcessGroupPtr& parent, const std::vector<int>& ranks,
                                            const ProcessGroupOptions& options = {});

/// Waits until every rank is here, then lets go of the connections, also when it throws because a rank is gone. Null is
/// allowed.
void DestroyProcessGroup(ProcessGroupPtr& group);

}  // namespace lockstep
