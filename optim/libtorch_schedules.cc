#include "lockstep/optim/libtorch_schedules.h"

#include <absl/status/status.h>
#include <c10/util/Exception.h>

#include <utility>

#include "lockstep/base/prefixed.h"
#include "lockstep/base/status_macros.h"
#include "lockstep/optim/internal/schedule_values.h"
#include "lockstep/optim/schedule_state.h"

namespace lockstep {

LibTorchSchedule::LibTorchSchedule(torch::optim::Optimizer& optimizer, std::unique_ptr<torch::optim::LRScheduler> inner)
    : Schedule(optimizer), inner_(std::move(inner)) {
  TORCH_CHECK(inner_ != nullptr, "LibTorchSchedule: there is no scheduler");
}

std::vector<double> LibTorchSchedule::get_lrs() {
  inner_->step();
  return Rates();
}

Value LibTorchSchedule::SaveState() {
  Value state((ValueDict()));
  state.set("inner", ScheduleState(*inner_));
  state.set("_last_lr", NumberList(Rates()));
  return state;
}

absl::Status LibTorchSchedule::LoadState(const Value& state) {
  LOCKSTEP_ASSIGN_OR_RETURN(const auto rates, GetRates(state, "_last_lr", optimizer().param_groups().size()));
  const Value* const inner = state.find("inner");
  if (inner == nullptr) return absl::InvalidArgumentError("it has no 'inner'");
  LOCKSTEP_RETURN_IF_ERROR(Prefixed("'inner': ", LoadScheduleState(*inner, *inner_)));
  SetRates(rates);
  return absl::OkStatus();
}

LibTorchPlateauSchedule::LibTorchPlateauSchedule(torch::optim::Optimizer& optimizer,
                                                 std::unique_ptr<torch::optim::ReduceLROnPlateauScheduler> inner,
                                                 std::string monitor)
    : Schedule(optimizer), inner_(std::move(inner)), monitor_(std::move(monitor)), base_rates_(Rates()) {
  TORCH_CHECK(inner_ != nullptr, "LibTorchPlateauSchedule: there is no scheduler");
}

void LibTorchPlateauSchedule::Step(std::optional<double> metric) {
  metric_ = metric;
  step();
}

std::vector<double> LibTorchPlateauSchedule::get_lrs() {
  TORCH_CHECK(metric_.has_value(), "LibTorchPlateauSchedule goes by a metric: call Step(metric), not step()");
  metrics_.push_back(static_cast<float>(*std::exchange(metric_, std::nullopt)));
  inner_->step(static_cast<float>(metrics_.back()));
  return Rates();
}

Value LibTorchPlateauSchedule::SaveState() {
  Value state((ValueDict()));
  state.set("base_lrs", NumberList(base_rates_));
  state.set("metrics", NumberList(metrics_));
  return state;
}

absl::Status LibTorchPlateauSchedule::LoadState(const Value& state) {
  if (!metrics_.empty()) return absl::InvalidArgumentError("this schedule has stepped already; load into a new one");
  LOCKSTEP_ASSIGN_OR_RETURN(const auto rates, GetRates(state, "base_lrs", base_rates_.size()));
  LOCKSTEP_ASSIGN_OR_RETURN(const auto metrics, GetNumbers(state, "metrics"));
  SetRates(rates);
  for (const double metric : metrics) Step(metric);
  return absl::OkStatus();
}

}  // namespace lockstep
