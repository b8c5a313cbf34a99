#pragma once

#include <ATen/core/Tensor.h>
#include <torch/optim/optimizer.h>

#include <vector>

namespace lockstep {

/// What an optimizer is that steps float copies of half-precision parameters, whatever its rule: a
/// MasterWeightOptimizer. The optimizer's own parameters are the copies; parameters of other dtypes are in it
/// themselves. Scalers and clipping take the gradients over before they look at them.
class MasterWeights {
 public:
  virtual ~MasterWeights() = default;

  /// Adds the gradients of the half-precision parameters to those of their copies, in float, and leaves them undefined.
  void TakeGradients();
  /// Leaves the gradients of the half-precision parameters undefined.
  void ClearGradients();
  /// The copies become what the parameters are, as after loading weights into the model.
  void CopyFromParameters();

  /// The half-precision parameters, and their copies in the same order.
  const std::vector<at::Tensor>& half_parameters() const { return parameters_; }
  const std::vector<at::Tensor>& copies() const { return copies_; }

 protected:
  /// The groups with copies instead of half-precision parameters.
  std::vector<torch::optim::OptimizerParamGroup> MakeCopies(std::vector<torch::optim::OptimizerParamGroup> groups);
  /// The parameters become what the copies are, rounded.
  void CopyToParameters();

 private:
  std::vector<at::Tensor> parameters_, copies_;
};

}  // namespace lockstep
