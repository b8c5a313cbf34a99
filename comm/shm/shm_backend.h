#pragma once

#include <absl/status/statusor.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include <chrono>
#include <memory>
#include <string>
#include <vector>

namespace lockstep {

class FlightRecorder;

struct ShmBackendOptions {
  std::chrono::milliseconds timeout = std::chrono::seconds(1800);  ///< Of the meeting and of every collective.
  /// Whether the ranks' tensors must agree in shape. That they call the same operation, with the same dtype, number of
  /// elements, reduction and root, is always checked.
  bool check_shapes = false;
  std::shared_ptr<FlightRecorder> recorder;  ///< Null: nothing is recorded.
  /// What the ranks are called in the errors of collectives, where the group serves a larger one; empty: as here.
  std::vector<int> names;
};

/// A backend for CPU tensors of ranks that share a host, through shared memory. Collective.
///
/// Errors, the same on all ranks: FailedPrecondition when two ranks can't share memory, which is tried out by passing a
/// file descriptor between each pair over a Unix socket of their network namespace; Unavailable when ranks don't come;
/// Internal when what lies in the store is of somebody else.
///
/// What it offers beyond c10d's Backend:
///  - `allocateTensor` gives zeroed tensors in shared memory, of which collectives copy nothing, as long as all ranks
///    give such a tensor; each is a memory of its own of at least a page, so it is for large ones. The memory goes back
///    when the tensor does. A tensor of another group is copied like any other.
///  - Collectives of a group run in the order in which they are asked for. Whoever waits for one runs it; one that
///    nobody waits for is run by a thread. Sends and receives, matched by tag, move by the side of that.
///  - All ranks' sums have the same bits. Half types are summed, averaged and compared in float and
///    rounded once.
///  - When a rank's process ends, the others' collectives throw within about 0.1 seconds and name it. A timeout names
///    the operation, its number and the ranks that did not come. After an error the group is of no use any more.
///
/// Thread-safe; the order of collectives must still be the same on all ranks.
absl::StatusOr<c10::intrusive_ptr<c10d::Backend>> MakeShmBackend(const c10::intrusive_ptr<c10d::Store>& store, int rank,
                                                                 int world_size, const ShmBackendOptions& options = {});

/// This rank gives up: the collectives of all others, under way or to come, throw that it did and `reason`. `backend`
/// is one of MakeShmBackend. Any thread.
void GiveUpShmBackend(c10d::Backend& backend, const std::string& reason);

}  // namespace lockstep
