#include "lockstep/amp/static_scaler.h"

#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>
#include <c10/core/GradMode.h>

#include <cmath>

#include "lockstep/amp/internal/unscale.h"

namespace lockstep {

StaticScaler::StaticScaler(double scale) : scale_(scale) {
  TORCH_CHECK(std::isfinite(scale) && scale > 0, "StaticScaler: the scale must be over 0 and finite, is ", scale);
}

at::Tensor StaticScaler::Scale(const at::Tensor& loss) { return loss * scale_; }

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
  stepped_.insert(&optimizer);
  optimizer.step();
  return true;
}

void StaticScaler::Update() {
  unscaled_.clear();
  stepped_.clear();
}

absl::Status StaticScaler::set_state(const std::map<std::string, double>& state) {
  const auto scale = state.find("scale");
  if (state.size() != 1 || scale == state.end()) {
    return absl::InvalidArgumentError("StaticScaler: the state must have 'scale' and nothing else");
  }
  if (!std::isfinite(scale->second) || scale->second <= 0) {
    return absl::InvalidArgumentError("StaticScaler: 'scale' of the state is out of range");
  }
  scale_ = scale->second;
  return absl::OkStatus();
}

}  // namespace lockstep
