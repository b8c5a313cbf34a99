#pragma once

#include <c10/core/GradMode.h>
#include <torch/optim/optimizer.h>

#include <utility>
#include <vector>

#include "lockstep/amp/master_weights.h"

namespace lockstep {

/// One of LibTorch's optimizers, `Inner`, for a model whose parameters are in bfloat16 or float16: it steps float
/// copies of them, in which small updates don't vanish, and then rounds these into the model (Micikevicius et al.,
/// arXiv:1710.03740). Its state is in float too. A GradScaler takes the scale out of the float copies of the gradients,
/// and looks for overflows there.
///
///     model->to(at::kBFloat16);
///     MasterWeightOptimizer<torch::optim::AdamW> optimizer(model->parameters(), torch::optim::AdamWOptions(1e-3));
///
/// A scaler's Unscale, or else the step, moves the gradients out of the model, and a step uses them up: afterwards,
/// also when a scaler skipped it, there are none. What else changes the model's parameters, such as loading weights or
/// DistributedDataParallel's first broadcast, is taken over by the next step, number by number; what is equal to its
/// rounded copy stays as fine as it is. The trainer's checkpoints keep the copies themselves. LBFGS is no Inner.
template <typename Inner>
class MasterWeightOptimizer : public MasterWeights, public Inner {
 public:
  /// `options` as Inner takes them.
  template <typename... Options>
  explicit MasterWeightOptimizer(std::vector<torch::optim::OptimizerParamGroup> groups, Options&&... options)
      : Inner(MakeCopies(std::move(groups)), std::forward<Options>(options)...) {}
  template <typename... Options>
  explicit MasterWeightOptimizer(std::vector<at::Tensor> parameters, Options&&... options)
      : MasterWeightOptimizer(
            std::vector<torch::optim::OptimizerParamGroup>{torch::optim::OptimizerParamGroup(std::move(parameters))},
            std::forward<Options>(options)...) {}

  /// A closure is run once, before the step.
  at::Tensor step(torch::optim::Optimizer::LossClosure closure = nullptr) override {
    at::Tensor loss;
    if (closure) {
      const c10::AutoGradMode with_gradients(true);
      loss = closure();
    }
    FollowChanges();
    TakeGradients();
    Inner::step();
    CopyToParameters();
    ClearGradients();
    return loss;
  }

  /// Of copies and parameters. Through a pointer to LibTorch's Optimizer only those of the copies are cleared, which
  /// makes a difference when a backward was not followed by a step; call ClearGradients then.
  void zero_grad(bool set_to_none = true) {
    ClearGradients();
    Inner::zero_grad(set_to_none);  // of parameters that are their own copies
  }

  /// Through a pointer to LibTorch's Optimizer parameters are added as they are, without copies.
  void add_param_group(const torch::optim::OptimizerParamGroup& group) {
    Inner::add_param_group(MakeCopies({group})[0]);
  }
};

}  // namespace lockstep
