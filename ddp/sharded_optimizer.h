#pragma once

#include <torch/optim/optimizer.h>

#include <utility>
#include <vector>

#include "lockstep/ddp/internal/sharded_optimizer_state.h"
#include "lockstep/ddp/sharded_reducer.h"
#include "lockstep/ddp/sharded_state.h"

namespace lockstep {

/// One of LibTorch's optimizers, `Inner`, with its state spread over the ranks: each rank steps the pieces of its shard
/// and then gathers everybody's. For optimizers that treat each element by itself (SGD, Adam, AdamW, Adagrad, RMSprop)
/// the parameters are those of plain data parallelism; LBFGS is not one of them.
///
///     ShardedReducer* reducer;
///     options.make_reducer = [&](auto parameters, const auto& group) {
///       auto made = std::make_unique<ShardedReducer>(std::move(parameters), group);
///       reducer = made.get();
///       return made;
///     };
///     DistributedDataParallel ddp(model, group, options);
///     ShardedOptimizer<torch::optim::Adam> optimizer(*reducer, torch::optim::AdamOptions(1e-3));
///
/// It is an `Inner` over pieces, so that schedulers, scalers and clipping by value work on it; a norm over all
/// gradients needs the other ranks' pieces too (the trainer's max_grad_norm sees to that), and a GradScaler needs its
/// group, so that all ranks step or none does. Its state is this rank's part;
/// WholeState, which the trainer saves, is that of an `Inner` over the whole parameters.
template <typename Inner>
class ShardedOptimizer : public Inner, public ShardedState {
 public:
  /// The reducer outlives it. `options` as Inner takes them. Collective.
  template <typename... Options>
  explicit ShardedOptimizer(ShardedReducer& reducer, Options&&... options)
      : Inner(Pieces(reducer), std::forward<Options>(options)...),
        reducer_(reducer),
        members_(internal::GroupMembers(*this, reducer)) {}
  /// With groups of pieces (see ShardedReducer::shard), the same groups on all ranks.
  template <typename... Options>
  ShardedOptimizer(ShardedReducer& reducer, std::vector<torch::optim::OptimizerParamGroup> groups, Options&&... options)
      : Inner(std::move(groups), std::forward<Options>(options)...),
        reducer_(reducer),
        members_(internal::GroupMembers(*this, reducer)) {}

  absl::StatusOr<Whole> WholeState() override { return internal::WholeOptimizerState(*this, reducer_); }
  absl::Status LoadWholeState(const Value& state, const Value* master_weights) override {
    return internal::LoadWholeOptimizerState(state, master_weights, *this, reducer_, members_);
  }

  /// Collective.
  at::Tensor step(torch::optim::Optimizer::LossClosure closure = nullptr) override {
    at::Tensor loss = Inner::step(std::move(closure));
    reducer_.GatherParameters();
    return loss;
  }

 private:
  static std::vector<at::Tensor> Pieces(const ShardedReducer& reducer) {
    std::vector<at::Tensor> pieces;
    for (const auto& piece : reducer.shard()) pieces.push_back(piece.tensor);
    return pieces;
  }

  ShardedReducer& reducer_;
  const std::vector<std::vector<size_t>> members_;  // of the groups
};

}  // namespace lockstep
