#pragma once

#include <absl/status/status.h>
#include <absl/status/statusor.h>

#include <cstdint>
#include <optional>
#include <string>

#include "lockstep/comm/process_group.h"

namespace lockstep {

/// Who serves and who works in a run with a parameter server, and by which rules; the same on all ranks. The first
/// ranks are servers, all others workers.
struct ParameterServerLayout {
  enum class Mode {
    /// A step waits for the gradients of all workers and takes their mean, as DistributedDataParallel does.
    kSynchronous,
    /// Each worker's gradient is a step of its own, taken when it comes (Dean et al., "Large Scale Distributed Deep
    /// Networks", 2012).
    kAsynchronous,
  };
  enum class Placement {
    /// Each tensor is on one server, whole, so that all have about as many bytes. A tensor that is larger than a
    /// server's fair share is not split: its server has more, and an optimizer sees whole tensors.
    kSharded,
    /// Each server has all tensors: workers send gradients to all and get parameters from one. Synchronous only:
    /// otherwise servers would take steps in different orders and drift apart.
    kReplicated,
  };

  int servers = 1;
  Mode mode = Mode::kSynchronous;
  Placement placement = Placement::kSharded;
  /// Asynchronous: how many steps a worker may be ahead of the slowest that still works; who is further ahead waits (Ho
  /// et al., "More Effective Distributed ML via a Stale Synchronous Parallel Parameter Server", 2013). Nothing: any.
  std::optional<int64_t> max_staleness;

  bool is_server(int rank) const { return rank < servers; }
  /// From 0 on; of a worker's rank. Shards of a data set are numbered so.
  int worker_index(int rank) const { return rank - servers; }
  int num_workers(int world_size) const { return world_size - servers; }
  /// "server 0 (rank 0)", "worker 1 (rank 2)".
  std::string Name(int rank) const;
  /// All of it, in words.
  std::string ToString() const;
  /// InvalidArgument for numbers that make no sense in a world of this size.
  absl::Status Validate(int world_size) const;
};

/// The group of the workers, in their order, for what they do together beside training: a GradScaler's decision, means
/// of metrics, the trainer. Of `group`, the whole world's, only the store is used. Null for one worker. A worker that
/// dies takes it down, so that asynchronous workers better do without. Collective for the workers. Errors:
/// NewSubGroup's, and InvalidArgument on a server.
absl::StatusOr<ProcessGroupPtr> NewWorkerGroup(const ProcessGroupPtr& group, const ParameterServerLayout& layout,
                                               const ProcessGroupOptions& options = {});

}  // namespace lockstep
