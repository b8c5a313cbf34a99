#include "lockstep/trainer/finite_check.h"

#include <absl/strings/str_cat.h>
#include <ATen/Functions.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "lockstep/comm/agree.h"

namespace lockstep {

void StepNumbers::Add(size_t epoch, size_t step, const char* name, const at::Tensor& number) {
  numbers_.push_back({epoch, step, name, number.defined() ? number.detach() : number});
}

absl::Status StepNumbers::Check(const ProcessGroupPtr& group) {
  const std::vector<Number> numbers = std::exchange(numbers_, {});
  std::vector<at::Tensor> defined;
  for (const auto& number : numbers) {
    if (!number.value.defined()) continue;
    const at::Device device = defined.empty() ? number.value.device() : defined.front().device();
    defined.push_back(number.value.to(device, at::kDouble).squeeze());
  }
  // One transfer from the device for all.
  const at::Tensor values = defined.empty() ? at::Tensor() : at::stack(defined).cpu();
  constexpr int64_t kNone = std::numeric_limits<int64_t>::max();
  const int64_t world_size = GetWorldSize(group), rank = GetRank(group);
  int64_t first = kNone;  // place times the world size, plus the rank: the least is the one to name
  absl::Status status;
  for (size_t place = 0, i = 0; place < numbers.size() && first == kNone; ++place) {
    if (!numbers[place].value.defined()) continue;
    const double value = values.data_ptr<double>()[i++];
    if (std::isfinite(value)) continue;
    first = static_cast<int64_t>(place) * world_size + rank;
    status = absl::InternalError(absl::StrCat("epoch ", numbers[place].epoch, ", step ", numbers[place].step, ": the ",
                                              numbers[place].name, " is ", value, ", not a finite number"));
  }
  if (!group) return status;
  at::Tensor least = at::scalar_tensor(first, at::kLong);
  AllReduce(least, group, c10d::ReduceOp::MIN);
  if (least.item<int64_t>() == kNone) return absl::OkStatus();
  return AgreeOnStatus(least.item<int64_t>() == first ? status : absl::OkStatus(), group);
}

std::map<std::string, double> FiniteCheck::state() const {
  return {{"skipped_in_a_row", static_cast<double>(in_a_row_)},
          {"streak_epoch", static_cast<double>(streak_epoch_)},
          {"streak_step", static_cast<double>(streak_step_)}};
}

void FiniteCheck::set_state(const std::map<std::string, double>& state) {
  const auto get = [&](const char* name) {
    const auto found = state.find(name);
    return found == state.end() ? 0 : static_cast<size_t>(std::max(0., found->second));
  };
  in_a_row_ = get("skipped_in_a_row");
  streak_epoch_ = get("streak_epoch");
  streak_step_ = get("streak_step");
}

absl::Status FiniteCheck::AddStep(bool stepped, size_t epoch, size_t step, const at::Tensor& loss,
                                  const at::Tensor& norm) {
  if (stepped) {
    in_a_row_ = 0;
    taken_.Add(epoch, step, "loss", loss);
    if (norm.defined()) taken_.Add(epoch, step, "norm of the gradients", norm);
    return options_.every > 0 && step % options_.every == 0 ? Check() : absl::OkStatus();
  }
  if (options_.max_skipped_steps == 0) return absl::OkStatus();
  if (++in_a_row_ == 1) {
    skipped_ = {};
    streak_epoch_ = epoch;
    streak_step_ = step;
  }
  skipped_.Add(epoch, step, "loss", loss);
  if (in_a_row_ < options_.max_skipped_steps) return absl::OkStatus();
  const absl::Status losses = skipped_.Check(group_);
  const std::string streak_start = absl::StrCat("epoch ", streak_epoch_, ", step ", streak_step_);
  const std::string first =
      losses.ok() ? streak_start + ": gradients are not finite though all losses are" : std::string(losses.message());
  return AgreeOnStatus(
      absl::InternalError(absl::StrCat(first, "; ", in_a_row_, " steps in a row were skipped, from ", streak_start)),
      group_);
}

}  // namespace lockstep
