#include "lockstep/optim/clip_gradients.h"

#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>
#include <c10/core/GradMode.h>

#include <cmath>

namespace lockstep {
namespace {

/// The dense values of all gradients, in lists of one device and dtype each, as the multi-tensor kernels want them.
std::vector<std::vector<at::Tensor>> DenseGradients(const std::vector<at::Tensor>& parameters) {
  std::vector<std::vector<at::Tensor>> kinds;
  for (at::Tensor parameter : parameters) {
    at::Tensor& gradient = parameter.mutable_grad();
    if (!gradient.defined() || gradient.numel() == 0) continue;
    at::Tensor values = gradient;
    if (gradient.is_sparse()) {
      gradient = gradient.coalesce();
      values = gradient._values();
      if (values.numel() == 0) continue;
    }
    size_t kind = 0;
    while (kind < kinds.size() &&
           (kinds[kind][0].device() != values.device() || kinds[kind][0].scalar_type() != values.scalar_type())) {
      ++kind;
    }
    if (kind == kinds.size()) kinds.emplace_back();
    kinds[kind].push_back(std::move(values));
  }
  return kinds;
}

at::Tensor Norm(const std::vector<std::vector<at::Tensor>>& kinds, const GradientNormOptions& options) {
  const double p = options.norm_type;
  TORCH_CHECK(p > 0, "GradientNorm: norm_type must be over 0, is ", p);
  std::vector<at::Tensor> norms;
  bool any_double = false;
  for (const auto& gradients : kinds) {
    const auto dtype = gradients[0].scalar_type();
    const bool half = dtype == at::kHalf || dtype == at::kBFloat16;
    for (const at::Tensor& norm : at::_foreach_norm(gradients, p, half ? std::optional(at::kFloat) : std::nullopt)) {
      norms.push_back(norm.to(kinds[0][0].device(), /*non_blocking=*/norm.is_cuda()));
      any_double = any_double || norm.scalar_type() == at::kDouble;
    }
  }
  if (any_double) {
    for (auto& norm : norms) norm = norm.to(at::kDouble);
  }
  at::Tensor norm = norms.empty() ? at::zeros({}, at::kFloat) : at::linalg_vector_norm(at::stack(norms), p);
  if (!options.shard_group) return norm;
  if (std::isinf(p)) {
    // A NaN must reach all ranks, which not every backend's maximum sees to.
    at::Tensor both = at::stack({norm.nan_to_num(0, INFINITY), norm.isnan().to(norm.scalar_type())});
    AllReduce(both, options.shard_group, c10d::ReduceOp::MAX);
    return at::where(both[1] > 0, NAN, both[0]).to(norm.scalar_type());
  }
  at::Tensor sum = norm.to(at::kDouble).pow(p);
  AllReduce(sum, options.shard_group);
  return sum.pow(1 / p).to(norm.scalar_type());
}

}  // namespace

at::Tensor GradientNorm(const std::vector<at::Tensor>& parameters, const GradientNormOptions& options) {
  const at::NoGradGuard no_grad;
  return Norm(DenseGradients(parameters), options);
}

at::Tensor ClipGradientNorm(const std::vector<at::Tensor>& parameters, double max_norm,
                            const GradientNormOptions& options) {
  TORCH_CHECK(max_norm >= 0, "ClipGradientNorm: max_norm must be at least 0, is ", max_norm);
  const at::NoGradGuard no_grad;
  auto kinds = DenseGradients(parameters);
  const at::Tensor norm = Norm(kinds, options);
  const at::Tensor factor = ((norm + 1e-6).reciprocal() * max_norm).clamp_max(1);  // Python's bits
  for (auto& gradients : kinds) {
    at::_foreach_mul_(gradients, factor.to(gradients[0].device(), /*non_blocking=*/factor.is_cuda()));
  }
  return norm;
}

void ClipGradientValue(const std::vector<at::Tensor>& parameters, double max_value) {
  TORCH_CHECK(max_value >= 0, "ClipGradientValue: max_value must be at least 0, is ", max_value);
  const at::NoGradGuard no_grad;
  for (auto& gradients : DenseGradients(parameters)) {
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
