#include "lockstep/amp/static_scaler.h"

#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>
#include <c10/core/GradMode.h>

#include "lockstep/amp/internal/unscale.h"

namespace lockstep {

StaticScaler::StaticScaler(double scale) : scale_(scale) {
  TORCH_CHECK(internal::IsScale(scale), "StaticScaler: the scale must be over 0 and finite, is ", scale);
}

at::Tensor StaticScaler::ScaleLoss(const at::Tensor& loss) {
  return loss * at::scalar_tensor(scale_, at::kFloat);  // a tensor, so that a half-precision loss doesn't stay one
}

void StaticScaler::Unscale(torch::optim::Optimizer& optimizer) {
  TORCH_CHECK(stepped_.count(&optimizer) == 0, "StaticScaler: Unscale is called after Step on ",
              internal::Describe(optimizer));
  TORCH_CHECK(unscaled_.count(&optimizer) == 0, "StaticScaler: Unscale was already called since the last Update on ",
              internal::Describe(optimizer));
  const at::NoGradGuard no_grad;
  for (auto& gradients : internal::GradientsByKind(optimizer, "StaticScaler")) {
    at::_foreach_mul_(gradients, at::Scalar(1 / scale_));
  }
  unscaled_.insert(&optimizer);
}

bool StaticScaler::Step(torch::optim::Optimizer& optimizer, torch::optim::Optimizer::LossClosure closure) {
  internal::RefuseClosure(optimizer, static_cast<bool>(closure), "StaticScaler");
  TORCH_CHECK(stepped_.count(&optimizer) == 0, "StaticScaler: Step was already called since the last Update on ",
              internal::Describe(optimizer));
  if (unscaled_.count(&optimizer) == 0) Unscale(optimizer);
  optimizer.step();
  stepped_.insert(&optimizer);
  return true;
}

void StaticScaler::Update() {
  unscaled_.clear();
  stepped_.clear();
}

}  // namespace lockstep
