#include "lockstep/trainer/finite_check.h"

#include <absl/strings/str_cat.h>
#include <ATen/Functions.h>

#include <cmath>
#include <limits>
#include <utility>

#include "lockstep/comm/agree.h"

namespace lockstep {

void FiniteCheck::Add(size_t epoch, size_t step, std::string name, const at::Tensor& number) {
  numbers_.push_back({epoch, step, std::move(name), number.defined() ? number.detach() : number});
}

absl::Status FiniteCheck::Check(const ProcessGroupPtr& group) {
  const std::vector<Number> numbers = std::exchange(numbers_, {});
  std::vector<at::Tensor> defined;
  for (const auto& number : numbers) {
    if (number.value.defined()) defined.push_back(number.value.to(at::kDouble).squeeze());
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

}  // namespace lockstep
