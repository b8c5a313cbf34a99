#pragma once

#include <torch/nn/module.h>
#include <torch/optim/optimizer.h>

#include <cstdint>
#include <vector>

#include "lockstep/checkpoint/split_state.h"
#include "lockstep/comm/collectives.h"

namespace lockstep {

/// The state of a pipeline as that of the unsplit model, so that a checkpoint may be taken up by one process, or by a
/// pipeline that is cut elsewhere.
///
/// Each stage's parameters and buffers have the names that they have in the whole model, as when a stage registers its
/// layers under their own names, and no two stages have a name in common. The optimizer's state is that of one over the
/// stages' parameters one after the other, in each group; all stages' optimizers have as many groups, and the first
/// one's options count.
class PipelineState : public SplitState {
 public:
  /// Nothing is owned; `group`: the pipeline's, rank r is stage r. Collective. Throws c10::Error for a name that
  /// two stages have and for optimizers with different numbers of groups.
  PipelineState(torch::nn::Module& stage, torch::optim::Optimizer& optimizer, ProcessGroupPtr group);

  absl::StatusOr<Value> WholeModel() override;
  absl::StatusOr<Value> WholeOptimizer() override;
  absl::Status CheckModel(const Value& whole) const override;
  absl::Status LoadModel(const Value& whole) override;
  absl::Status LoadOptimizer(const Value& whole) override;

 private:
  void CheckNames() const;
  /// The index in the whole optimizer of each parameter of a stage, by group.
  std::vector<std::vector<int64_t>> IndicesOf(int stage) const;

  torch::nn::Module& stage_;
  torch::optim::Optimizer& optimizer_;
  const ProcessGroupPtr group_;
  std::vector<std::vector<int64_t>> counts_;  // parameters, by stage and group
};

}  // namespace lockstep
