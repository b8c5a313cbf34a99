#pragma once

#include <torch/nn/module.h>

#include <cstddef>
#include <cstdint>
#include <string>

#include "lockstep/checkpoint/split_state.h"
#include "lockstep/comm/collectives.h"
#include "lockstep/ddp/distributed_data_parallel_base.h"

namespace lockstep {

/// Which part of the data a rank trains on, for samplers: DistributedSampler(size, count, index).
struct DataShare {
  int index = 0;
  int count = 1;
};

/// How a model is trained on several devices or ranks: what of the trainer's work differs between the ways to do it.
/// Those that come with the library: SingleStrategy, DdpStrategy (with a ShardedReducer: ZeRO-1), DataParallelStrategy,
/// PipelineStrategy, ParameterServerStrategy. Nothing is owned.
class Strategy {
 public:
  virtual ~Strategy() = default;

  /// For logs: "single", "ddp", "zero1", …
  virtual std::string name() const = 0;
  /// Is switched between training and evaluation; what train and eval steps call.
  virtual torch::nn::Module& wrapper() = 0;
  /// The ranks that run the trainer together: they agree about metrics, errors and when to stop. Null: this one alone.
  virtual ProcessGroupPtr group() const { return nullptr; }
  virtual DataShare share() const { return {}; }
  /// How many ranks' batches one step of the optimizer takes.
  virtual int shares_of_a_step() const { return share().count; }
  /// Among which each of this rank's batches is cut.
  virtual size_t devices() const { return 1; }

  /// What averages gradients in backward; null: none of that kind. Options of GradientStepOptions need it.
  virtual DistributedDataParallelBase* ddp() { return nullptr; }
  /// Each of its ranks has other parameters, so that a norm is one over all of them; null: this rank has all.
  virtual ProcessGroupPtr shard_group() { return nullptr; }
  /// Where each rank has a part of the module, what brings the parts together for checkpoints; else null.
  virtual SplitState* split_state() { return nullptr; }
  /// Whether losses, metrics and samples of this rank's steps count: of ranks that work on the same batch one does.
  virtual bool counts() const { return true; }
};

/// One device, one process.
class SingleStrategy : public Strategy {
 public:
  explicit SingleStrategy(torch::nn::Module& module) : module_(module) {}
  std::string name() const override { return "single"; }
  torch::nn::Module& wrapper() override { return module_; }

 private:
  torch::nn::Module& module_;
};

/// A replica on each rank. "zero1" where the reducer gives each rank a shard of the parameters to step.
class DdpStrategy : public Strategy {
 public:
  explicit DdpStrategy(DistributedDataParallelBase& ddp) : ddp_(ddp) {}
  std::string name() const override { return ddp_.reducer().shard_group() ? "zero1" : "ddp"; }
  torch::nn::Module& wrapper() override { return ddp_; }
  ProcessGroupPtr group() const override { return ddp_.group(); }
  DataShare share() const override { return {GetRank(ddp_.group()), GetWorldSize(ddp_.group())}; }
  DistributedDataParallelBase* ddp() override { return &ddp_; }
  ProcessGroupPtr shard_group() override { return ddp_.reducer().shard_group(); }

 private:
  DistributedDataParallelBase& ddp_;
};

/// Says, on the rank that takes the data's first share, how many samples a step takes there and everywhere.
void LogBatch(const Strategy& strategy, int64_t samples);

}  // namespace lockstep
