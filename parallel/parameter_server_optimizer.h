#pragma once

#include <absl/status/status.h>
#include <absl/status/statusor.h>
#include <torch/nn/module.h>
#include <torch/optim/optimizer.h>

#include <cstdint>
#include <memory>

#include "lockstep/comm/process_group.h"
#include "lockstep/ddp/sharded_state.h"
#include "lockstep/parallel/parameter_server_layout.h"
#include "lockstep/parallel/parameter_server_optimizer_factory.h"

namespace lockstep {

/// A worker's side of a parameter server: an optimizer whose steps are taken by the servers. `step()` sends the
/// module's gradients and buffers, and returns with the parameters and buffers that come of it, in one round trip; it
/// is used like any other in a training loop, with schedulers, scalers and the trainer. Of its groups' options the
/// learning rates reach the servers, with each step.
///
/// Synchronous workers all make as many steps, so that a GradScaler needs their group (NewWorkerGroup). What clips
/// gradients sees this worker's own. Sparse gradients are refused. Not thread-safe.
///
/// Errors of all that communicates: c10::DistBackendError that names the server or worker that is gone or to blame; the
/// optimizer is of no use afterwards.
class ParameterServerOptimizer : public torch::optim::Optimizer, public ShardedState {
 public:
  /// The module, which outlives this, may be on any device; it becomes what the servers have. With the same factory as
  /// on the servers. Of `group`, the whole world's, only the store is used. Collective, with ParameterServer::Connect.
  /// Errors: those of NewSubGroup; InvalidArgument that names in what this worker differs from a server; Unavailable
  /// when the servers have failed meanwhile.
  static absl::StatusOr<std::unique_ptr<ParameterServerOptimizer>> Connect(const ProcessGroupPtr& group,
                                                                           const ParameterServerLayout& layout,
                                                                           torch::nn::Module& module,
                                                                           const OptimizerFactory& make_optimizer,
                                                                           const ProcessGroupOptions& options = {});
  /// Without a Finish before, the servers are told that this worker has given up.
  ~ParameterServerOptimizer() override;

  /// Push and Pull at once. A closure is run first.
  at::Tensor step(LossClosure closure = nullptr) override;
  /// The gradients become a step on the servers, or this worker's part of one. Throws for a sparse gradient, when the
  /// groups have been changed otherwise than in their learning rates, and when a parameter needs a gradient that was
  /// frozen when the servers were connected.
  void Push();
  /// The module becomes what the servers have now.
  void Pull();
  /// Tells the servers that this worker is done; nothing but destruction may follow.
  void Finish();

  /// Of the last gradient, the number of steps that were taken between the parameters that it was made from and it; of
  /// several servers the largest.
  int64_t last_staleness() const;

  /// For checkpoints of the trainer: the servers' state, on worker 0, or, asynchronous, on whoever asks.
  absl::StatusOr<Whole> WholeState() override;
  /// The servers take over the state and this module's parameters and buffers, which then are everybody's. Before the
  /// first step: later InvalidArgument; where another asynchronous worker was faster, that one's counts.
  absl::Status LoadWholeState(const Value& state, const Value* master_weights) override;

 private:
  class Impl;
  explicit ParameterServerOptimizer(std::unique_ptr<Impl> impl);
  const std::unique_ptr<Impl> impl_;
};

}  // namespace lockstep
