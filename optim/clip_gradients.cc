#include "lockstep/optim/clip_gradients.h"

#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>
#include <c10/core/GradMode.h>

#include <cmath>
#include <unordered_set>
#include <utility>

#include "lockstep/base/tensor_kinds.h"

namespace lockstep {
namespace {

/// The values of all gradients that are not empty.
TensorKinds Values(const std::vector<at::Tensor>& parameters) {
  TensorKinds kinds;
  std::unordered_set<const c10::TensorImpl*> seen;  // a tied parameter may be listed more than once
  for (at::Tensor parameter : parameters) {
    at::Tensor& gradient = parameter.mutable_grad();
    if (!gradient.defined() || !seen.insert(parameter.unsafeGetTensorImpl()).second) continue;
    if (gradient.is_sparse()) gradient = gradient.coalesce();
    at::Tensor values = gradient.is_sparse() ? gradient._values() : gradient;
    if (values.numel() > 0) kinds.Add(std::move(values));
  }
  return kinds;
}

at::Tensor OverShards(const at::Tensor& norm, const GradientNormOptions& options) {
  // In double on every rank: what a rank has none of, it has no dtype of either.
  at::Tensor number = norm.to(at::kDouble);
  const double p = options.norm_type;
  if (!std::isinf(p)) {
    number = number.pow(p);
    AllReduce(number, options.shard_group);
    return number.pow(1 / p);
  }
  // A NaN must reach all ranks, which not every backend's maximum sees to.
  const at::Tensor both = at::stack({number.nan_to_num(0, INFINITY), number.isnan().to(at::kDouble)});
  AllReduce(both, options.shard_group, c10d::ReduceOp::MAX);
  return at::where(both[1] > 0, NAN, both[0]);
}

at::Tensor Norm(const std::vector<at::Tensor>& parameters, TensorKinds& kinds, const GradientNormOptions& options) {
  const double p = options.norm_type;
  TORCH_CHECK(p > 0, "GradientNorm: norm_type must be over 0, is ", p);
  at::Device device = at::kCPU;
  if (options.device) {
    device = *options.device;
  } else if (!kinds.lists().empty()) {
    device = kinds.lists()[0][0].device();
  } else if (!parameters.empty()) {
    device = parameters[0].device();
  }
  std::vector<at::Tensor> norms;
  bool any_double = false;
  for (const auto& gradients : kinds.lists()) {
    const auto dtype = gradients[0].scalar_type();
    const bool half = dtype == at::kHalf || dtype == at::kBFloat16;
    for (const at::Tensor& norm : at::_foreach_norm(gradients, p, half ? std::optional(at::kFloat) : std::nullopt)) {
      norms.push_back(norm.to(device));
      any_double = any_double || norm.scalar_type() == at::kDouble;
    }
  }
  const auto dtype = any_double ? at::kDouble : at::kFloat;
  for (auto& norm : norms) norm = norm.to(dtype);
  const at::Tensor norm =
      norms.empty() ? at::zeros({}, at::TensorOptions(device)) : at::linalg_vector_norm(at::stack(norms), p);
  return options.shard_group ? OverShards(norm, options).to(dtype) : norm;
}

}  // namespace

at::Tensor GradientNorm(const std::vector<at::Tensor>& parameters, const GradientNormOptions& options) {
  const at::NoGradGuard no_grad;
  TensorKinds kinds = Values(parameters);
  return Norm(parameters, kinds, options);
}

at::Tensor ClipGradientNorm(const std::vector<at::Tensor>& parameters, double max_norm,
                            const GradientNormOptions& options) {
  TORCH_CHECK(max_norm >= 0, "ClipGradientNorm: max_norm must be at least 0, is ", max_norm);
  const at::NoGradGuard no_grad;
  TensorKinds kinds = Values(parameters);
  const at::Tensor norm = Norm(parameters, kinds, options);
  const at::Tensor factor = ((norm + 1e-6).reciprocal() * max_norm).clamp_max(1);  // Python's bits
  for (auto& gradients : kinds.lists()) at::_foreach_mul_(gradients, factor.to(gradients[0].device()));
  return norm;
}

void ClipGradientValue(const std::vector<at::Tensor>& parameters, double max_value) {
  TORCH_CHECK(max_value >= 0, "ClipGradientValue: max_value must be at least 0, is ", max_value);
  const at::NoGradGuard no_grad;
  TensorKinds kinds = Values(parameters);
  for (auto& gradients : kinds.lists()) {
    TORCH_CHECK(!gradients[0].is_complex(), "ClipGradientValue: complex numbers have no order");
    at::_foreach_clamp_min_(gradients, at::Scalar(-max_value));
    at::_foreach_clamp_max_(gradients, at::Scalar(max_value));
  }
}

std::vector<at::Tensor> AllParameters(const torch::optim::Optimizer& optimizer) {
  std::vector<at::Tensor> all;
  for (const auto& group : optimizer.param_groups()) {
    all.insert(all.end(), group.params().begin(), group.params().end());
  }
  return all;
}

}  // namespace lockstep
