#include "lockstep/trainer/weight_average.h"

#include <absl/status/status.h>
#include <absl/strings/str_cat.h>
#include <ATen/Functions.h>
#include <c10/core/GradMode.h>
#include <c10/util/Exception.h>

#include "lockstep/base/status_macros.h"

namespace lockstep {

WeightAverage::WeightAverage(torch::nn::Module& module, double decay)
    : parameters_(module.parameters()), decay_(decay) {
  TORCH_CHECK(decay >= 0 && decay < 1, "WeightAverage: the decay must be in [0, 1), got ", decay);
}

void WeightAverage::OnStepEnd(StepInfo& info) {
  if (!info.stepped) return;
  const c10::NoGradGuard no_grad;
  for (size_t i = 0; i < parameters_.size(); ++i) {
    if (steps_ == 0) {
      others_.push_back(parameters_[i].detach().clone());
    } else {
      others_[i].lerp_(parameters_[i].detach(), 1 - decay_);
    }
  }
  ++steps_;
}

void WeightAverage::Exchange(bool averages_in) {
  if (averages_in == averages_in_ || steps_ == 0) return;
  averages_in_ = averages_in;
  const c10::NoGradGuard no_grad;
  for (size_t i = 0; i < parameters_.size(); ++i) {
    const at::Tensor mine = parameters_[i].detach().clone();
    parameters_[i].detach().copy_(others_[i]);
    others_[i].copy_(mine);
  }
}

Value WeightAverage::SaveState() {
  ValueList averages;
  for (const auto& average : averages_in_ ? parameters_ : others_) averages.push_back(average.detach());
  Value state((ValueDict()));
  state.set("steps", steps_);
  state.set("averages", std::move(averages));
  return state;
}

absl::Status WeightAverage::LoadState(const Value& state) {
  const Value* const steps = state.find("steps");
  const Value* const averages = state.find("averages");
  if (steps == nullptr || averages == nullptr || averages->items() == nullptr) {
    return absl::InvalidArgumentError("it has no 'steps' and 'averages'");
  }
  LOCKSTEP_ASSIGN_OR_RETURN(const auto count, steps->count());
  const ValueList& items = *averages->items();
  if (items.size() != (count == 0 ? 0 : parameters_.size())) {
    return absl::InvalidArgumentError(
        absl::StrCat(items.size(), " averages of ", parameters_.size(), " parameters after ", count, " steps"));
  }
  std::vector<at::Tensor> loaded;
  for (size_t i = 0; i < items.size(); ++i) {
    const at::Tensor* const average = items[i].tensor();
    if (average == nullptr || average->sizes() != parameters_[i].sizes()) {
      return absl::InvalidArgumentError(absl::StrCat("average ", i, " doesn't fit its parameter"));
    }
    loaded.push_back(at::empty_like(parameters_[i].detach()).copy_(*average));
  }
  others_ = std::move(loaded);
  steps_ = static_cast<int64_t>(count);
  averages_in_ = false;
  return absl::OkStatus();
}

}  // namespace lockstep
