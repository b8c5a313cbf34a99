#pragma once

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>
#include <torch/optim/optimizer.h>

#include <absl/status/statusor.h>
#include <cstdint>
#include <memory>
#include <vector>

#include "lockstep/amp/loss_scaler.h"
#include "lockstep/checkpoint/value.h"
#include "lockstep/comm/collectives.h"
#include "lockstep/ddp/distributed_data_parallel_base.h"
#include "lockstep/trainer/anomaly.h"
#include "lockstep/trainer/step.h"

namespace lockstep {

struct GradientStepOptions {
  /// Batches whose gradients one step of the optimizer takes together, each with the loss divided by their number, as
  /// for one batch of all their samples. Only the last one's backward communicates.
  size_t accumulate = 1;
  /// Every sample of a step weighs the same, on whatever rank and in whatever batch it is; otherwise every batch does.
  bool weight_by_samples = false;
  double max_grad_norm = 0;      ///< Gradients are scaled down to this norm before each step; 0: not.
  double grad_norm_type = 2;     ///< The p of that norm; infinity: the largest absolute value.
  bool clip_each_group = false;  ///< The norm is each parameter group's own; all ranks have as many groups.
  double max_grad_value = 0;     ///< Each number of the gradients is clamped to ± this before each step; 0: not.
  /// Backward looks for numbers that are not finite and says where they come from; see anomaly.h. Slow.
  bool detect_anomaly = false;
  /// Steps between checks that all ranks' parameters and loss scales are still equal; 0: none.
  size_t check_parameters_every = 0;
};

/// From losses to steps of the optimizer. A window is the batches that one step takes. The scale is taken out of the
/// gradients, then they are clipped, by value and then by norm; a norm that is not finite counts as an overflow.
class GradientStep {
 public:
  /// Nothing is owned. `ddp` may be null: then nothing is communicated here, but for norms where each rank of a
  /// `shard_group` has other parameters.
  GradientStep(torch::optim::Optimizer* optimizer, LossScaler* scaler, DistributedDataParallelBase* ddp,
               GradientStepOptions options, ProcessGroupPtr shard_group = nullptr);

  /// Begins a window; gradients are cleared.
  void Begin();
  /// Keeps a forward that is not the last of its window from communicating, while it lives; null for others.
  std::unique_ptr<DistributedDataParallelBase::NoSync> ForwardGuard(bool last_of_window);
  /// Backward from a batch's loss. `counts`: false for a batch that only keeps other ranks company (see Join).
  void Backward(const StepOutput& output, bool last_of_window, bool counts = true);
  /// Steps the optimizer, unless the scaler skips; returns whether it stepped. With check_parameters_every throws when
  /// the ranks have drifted apart.
  bool Step();

  /// Of the last step's gradients, before they were clipped by it (of several groups the largest); undefined without
  /// max_grad_norm.
  at::Tensor grad_norm() const { return grad_norm_; }
  /// Whether no window has begun, and whether the next batch is the last one that a whole window takes.
  bool between_steps() const { return batches_ == 0; }
  bool is_next_last() const { return batches_ + 1 >= options_.accumulate; }

  /// A GradientWindow as a value, with this rank's gradients of the module's parameters.
  Value SaveState(const torch::nn::Module& module) const;
  /// Takes over one rank's state; another number of batches a step is allowed. InvalidArgument when it doesn't fit.
  absl::Status LoadState(const Value& state, torch::nn::Module& module);
  /// Of the states of all ranks of one world what each rank of another takes: the first has all gradients, so that the
  /// step becomes the one that it would have been; the others have none.
  absl::StatusOr<Value> ForOtherWorld(const ValueList& ranks, const ProcessGroupPtr& group) const;

  /// Of the window: the mean of the losses of the batches that count; undefined when there was none.
  at::Tensor loss() const { return counted_ > 0 ? loss_ / static_cast<double>(counted_) : at::Tensor(); }

 private:
  void ScaleGradients(double factor);
  void ClipGradients();
  at::Tensor ClipNorm();

  torch::optim::Optimizer* const optimizer_;
  LossScaler* const scaler_;
  DistributedDataParallelBase* const ddp_;
  const GradientStepOptions options_;
  const ProcessGroupPtr shard_group_;
  size_t batches_ = 0, counted_ = 0;
  int64_t samples_ = 0;
  bool went_backward_ = false;  // the step itself, so that its gradients are of undivided losses
  at::Tensor loss_, grad_norm_;
  size_t steps_ = 0;
  std::unique_ptr<AnomalyDetector> anomalies_;
};

}  // namespace lockstep
