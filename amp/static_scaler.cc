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
  internal::Stage& stage = stages_[&optimizer];
  internal::CheckMayUnscale(stage, optimizer, "StaticScaler");
  const at::NoGradGuard no_grad;
  for (auto& gradients : internal::GradientsByKind(optimizer, "StaticScaler")) {
    at::_foreach_mul_(gradients, at::Scalar(1 / scale_));
  }
  stage = internal::Stage::kUnscaled;
}

bool StaticScaler::Step(torch::optim::Optimizer& optimizer, torch::optim::Optimizer::LossClosure closure) {
  internal::RefuseClosure(optimizer, static_cast<bool>(closure), "StaticScaler");
  internal::Stage& stage = stages_[&optimizer];
  internal::CheckMayStep(stage, optimizer, "StaticScaler");
  if (stage == internal::Stage::kReady) Unscale(optimizer);
  optimizer.step();
  stage = internal::Stage::kStepped;
  return true;
}

void StaticScaler::Update() { stages_.clear(); }

}  // namespace lockstep
