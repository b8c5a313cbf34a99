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
  std::vector<at::Tensor> from, fresh, sums, addends;  // what is copied, and what is then added to what
  for (size_t i = 0; i < parameters_.size(); ++i) {
    at::Tensor& gradient = parameters_[i].mutable_grad();
    if (!gradient.defined()) continue;
    at::Tensor& sum = copies_[i].mutable_grad();
    if (gradient.is_sparse() || (sum.defined() && sum.is_sparse())) {
      const at::Tensor wide = gradient.to(at::kFloat);
      sum = !sum.defined() ? wide : sum.is_sparse() ? wide + sum : sum + wide;
    } else {
      from.push_back(gradient);
      fresh.push_back(at::empty_like(copies_[i], copies_[i].options().requires_grad(false)));
      if (sum.defined()) {
        sums.push_back(sum);
        addends.push_back(fresh.back());
      } else {
        sum = fresh.back();
      }
    }
    gradient.reset();
  }
  if (!from.empty()) at::_foreach_copy_(fresh, from);
  if (!sums.empty()) at::_foreach_add_(sums, addends);
}

void MasterWeights::ClearGradients() {
  for (at::Tensor& parameter : parameters_) parameter.mutable_grad().reset();
  for (at::Tensor& copy : copies_) copy.mutable_grad().reset();
}

void MasterWeights::SetCopies(const std::vector<at::Tensor>& values) {
  TORCH_CHECK(values.size() == copies_.size(), "MasterWeights: there are ", copies_.size(), " copies, not ",
              values.size());
  const at::NoGradGuard no_grad;
  if (!copies_.empty()) at::_foreach_copy_(copies_, values);
}

void MasterWeights::FollowChanges() {
  const at::NoGradGuard no_grad;
  for (size_t i = 0; i < copies_.size(); ++i) {
    const at::Tensor rounded = copies_[i].to(parameters_[i].scalar_type());
    if (rounded.is_cpu() && rounded.equal(parameters_[i])) continue;  // elsewhere the answer would have to be waited for
    at::where_out(copies_[i], rounded.ne(parameters_[i]), parameters_[i].to(at::kFloat), copies_[i]);
  }
}

void MasterWeights::CopyToParameters() {
  const at::NoGradGuard no_grad;
  std::vector<at::Tensor> to, from;
  for (size_t i = 0; i < copies_.size(); ++i) {
    if (!copies_[i].grad().defined()) continue;
    to.push_back(parameters_[i]);
    from.push_back(copies_[i]);
  }
  if (!to.empty()) at::_foreach_copy_(to, from);
}

}  // namespace lockstep
