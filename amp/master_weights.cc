#include "lockstep/amp/master_weights.h"

#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>
#include <c10/core/GradMode.h>

namespace lockstep {

std::vector<torch::optim::OptimizerParamGroup> MasterWeights::MakeCopies(
    std::vector<torch::optim::OptimizerParamGroup> groups) {
  for (auto& group : groups) {
    for (at::Tensor& parameter : group.params()) {
      if (parameter.scalar_type() != at::kHalf && parameter.scalar_type() != at::kBFloat16) continue;
      parameters_.push_back(parameter);
      parameter = parameter.detach().to(at::kFloat).requires_grad_(parameter.requires_grad());
      copies_.push_back(parameter);
    }
  }
  return groups;
}

void MasterWeights::TakeGradients() {
  const at::NoGradGuard no_grad;
  for (size_t i = 0; i < parameters_.size(); ++i) {
    at::Tensor& gradient = parameters_[i].mutable_grad();
    if (!gradient.defined()) continue;
    at::Tensor& sum = copies_[i].mutable_grad();
    sum = sum.defined() ? sum + gradient : gradient.to(at::kFloat);
    gradient.reset();
  }
}

void MasterWeights::ClearGradients() {
  for (at::Tensor& parameter : parameters_) parameter.mutable_grad().reset();
}

void MasterWeights::CopyFromParameters() {
  const at::NoGradGuard no_grad;
  if (!copies_.empty()) at::_foreach_copy_(copies_, parameters_);
}

void MasterWeights::CopyToParameters() {
  const at::NoGradGuard no_grad;
  if (!copies_.empty()) at::_foreach_copy_(parameters_, copies_);
}

}  // namespace lockstep
