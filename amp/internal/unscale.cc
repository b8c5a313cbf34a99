#include "lockstep/amp/internal/unscale.h"

#include <ATen/Functions.h>
#include <c10/util/Exception.h>
#include <c10/util/Type.h>
#include <torch/optim/lbfgs.h>

#include <cmath>
#include <typeinfo>
#include <unordered_set>
#include <utility>

#include "lockstep/amp/master_weights.h"
#include "lockstep/base/tensor_kinds.h"

namespace lockstep::internal {

std::vector<std::vector<at::Tensor>> GradientsByKind(torch::optim::Optimizer& optimizer, const char* scaler) {
  if (auto* master = MasterWeights::Of(optimizer)) master->TakeGradients();
  TensorKinds kinds;
  std::unordered_set<const c10::TensorImpl*> seen;  // a tied parameter may be listed more than once
  size_t index = 0;
  for (auto& group : optimizer.param_groups()) {
    for (auto& parameter : group.params()) {
      at::Tensor gradient = parameter.grad();
      ++index;
      if (!gradient.defined() || !seen.insert(parameter.unsafeGetTensorImpl()).second) continue;
      TORCH_CHECK(gradient.scalar_type() != at::kHalf, scaler, ": the gradient of parameter ", index - 1,
                  " of the optimizer, of shape ", gradient.sizes(),
                  ", is in float16, where taking the scale out would make small numbers vanish; keep parameters in "
                  "float32 and use autocast, or take a MasterWeightOptimizer");
      if (gradient.is_sparse()) gradient = gradient._values();
      kinds.Add(gradient.is_complex() ? at::view_as_real(gradient) : gradient);
    }
  }
  return std::move(kinds.lists());
}

bool IsScale(double scale) {
  const auto as_float = static_cast<float>(scale);
  return std::isfinite(as_float) && as_float > 0;
}

void CheckMayUnscale(Stage stage, const torch::optim::Optimizer& optimizer, const char* scaler) {
  TORCH_CHECK(stage != Stage::kUnscaled, scaler, ": Unscale was already called since the last Update on ",
              Describe(optimizer));
  TORCH_CHECK(stage != Stage::kStepped, scaler, ": Unscale is called after Step on ", Describe(optimizer));
}

void CheckMayStep(Stage stage, const torch::optim::Optimizer& optimizer, const char* scaler) {
  TORCH_CHECK(stage != Stage::kStepped, scaler, ": Step was already called since the last Update on ",
              Describe(optimizer));
}

void RefuseClosure(const torch::optim::Optimizer& optimizer, bool closure, const char* scaler) {
  TORCH_CHECK(
      !closure && dynamic_cast<const torch::optim::LBFGS*>(&optimizer) == nullptr, scaler, ": ", Describe(optimizer),
      " runs a closure, which computes the loss and its gradients anew within the step, where neither the scale "
      "is taken out of them nor an overflow is seen; use bfloat16 or float32 without a scaler for it");
}

std::string Describe(const torch::optim::Optimizer& optimizer) {
  size_t parameters = 0;
  for (const auto& group : optimizer.param_groups()) parameters += group.params().size();
  return c10::demangle(typeid(optimizer).name()) + " of " + std::to_string(parameters) + " parameters";
}

}  // namespace lockstep::internal
