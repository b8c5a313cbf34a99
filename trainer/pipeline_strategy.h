#pragma once

#include <string>
#include <utility>

#include "lockstep/parallel/pipeline.h"
#include "lockstep/parallel/pipeline_state.h"
#include "lockstep/parallel/rank_grid.h"
#include "lockstep/trainer/strategy.h"

namespace lockstep {

/// A model in stages on several ranks, and as many such pipelines side by side as there are ranks for. Train steps call
/// Pipeline::Step and return its loss with `went_backward`; evaluation steps call Pipeline::Evaluate, and what they
/// return counts on the last stage only. A loss scale can't be used.
class PipelineStrategy : public Strategy {
 public:
  /// `stage`: this rank's, what the pipeline calls (where there are replicas, in DistributedDataParallel). `group`: all
  /// ranks; `grid`: MakeRankGrid's, of the same. `state`: of the stage's module, for checkpoints. Nothing is owned.
  PipelineStrategy(const Pipeline& pipeline, torch::nn::Module& stage, ProcessGroupPtr group, RankGrid grid,
                   PipelineState& state)
      : pipeline_(pipeline), stage_(stage), group_(std::move(group)), grid_(std::move(grid)), state_(state) {}

  std::string name() const override { return "pipeline"; }
  torch::nn::Module& wrapper() override { return stage_; }
  ProcessGroupPtr group() const override { return group_; }
  DataShare share() const override { return {grid_.replica, GetWorldSize(grid_.data)}; }
  DistributedDataParallelBase* ddp() override { return dynamic_cast<DistributedDataParallelBase*>(&stage_); }
  ProcessGroupPtr shard_group() override { return grid_.pipeline; }
  SplitState* split_state() override { return &state_; }
  bool counts() const override { return pipeline_.is_last(); }

 private:
  const Pipeline& pipeline_;
  torch::nn::Module& stage_;
  const ProcessGroupPtr group_;
  const RankGrid grid_;
  PipelineState& state_;
};

}  // namespace lockstep
