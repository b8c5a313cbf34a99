#pragma once

#include <ATen/core/Tensor.h>
#include <torch/optim/optimizer.h>

#include <vector>

namespace lockstep {

/// What an optimizer is that steps float copies of half-precision parameters, whatever its rule: a
/// MasterWeightOptimizer. The optimizer's own parameters are the copies; parameters of other dtypes are in it
/// themselves. A LossScaler's Unscale takes the gradients over, so that they can be clipped.
class MasterWeights {
 public:
  virtual ~MasterWeights() = default;
  /// What `optimizer` is, or null.
  static MasterWeights* Of(torch::optim::Optimizer& optimizer) { return dynamic_cast<MasterWeights*>(&optimizer); }

  /// Adds the gradients of the half-precision parameters to those of their copies, in float, and leaves them undefined.
  void TakeGradients();
  /// Leaves the gradients of the half-precision parameters and of their copies undefined.
  void ClearGradients();
  /// The copies become `values`, one for each, as saved by an earlier run.
  void SetCopies(const std::vector<at::Tensor>& values);

  /// The half-precision parameters, and their copies in the same order.
  const std::vector<at::Tensor>& half_parameters() const { return parameters_; }
  const std::vector<at::Tensor>& copies() const { return copies_; }

 protected:
  /// The groups with copies instead of half-precision parameters.
  std::vector<torch::optim::OptimizerParamGroup> MakeCopies(std::vector<torch::optim::OptimizerParamGroup> groups);
  /// Numbers of the parameters that are not what their copies round to are copied anew: somebody has changed them.
  void FollowChanges();
  /// The parameters whose copies have a gradient become what those are, rounded.
  void CopyToParameters();

 private:
  std::vector<at::Tensor> parameters_, copies_;
};

}  // namespace lockstep
