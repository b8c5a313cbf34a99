#include "lockstep/optim/lambda_schedule.h"

#include <absl/status/status.h>
#include <c10/util/Exception.h>

#include <utility>

#include "lockstep/base/status_macros.h"
#include "lockstep/optim/internal/schedule_values.h"

namespace lockstep {

LambdaSchedule::LambdaSchedule(torch::optim::Optimizer& optimizer, RateFunction rate)
    : LambdaSchedule(optimizer, std::move(rate), {}) {}

LambdaSchedule::LambdaSchedule(torch::optim::Optimizer& optimizer, RateFunction rate, std::vector<double> base_rates)
    : Schedule(optimizer), rate_(std::move(rate)), base_rates_(base_rates.empty() ? Rates() : std::move(base_rates)) {
  SetRates(RatesAt(0, base_rates_));
}

std::vector<double> LambdaSchedule::RatesAt(int64_t step, const std::vector<double>& base_rates) const {
  std::vector<double> rates;
  for (const double base_rate : base_rates) rates.push_back(rate_(step, base_rate));
  return rates;
}

/// LibTorch's step() counts after it has asked.
std::vector<double> LambdaSchedule::get_lrs() { return RatesAt(int64_t{step_count_} + 1, base_rates_); }

Value LambdaSchedule::SaveState() {
  Value state((ValueDict()));
  state.set("last_epoch", int64_t{step_count_});
  state.set("base_lrs", NumberList(base_rates_));
  return state;
}

absl::Status LambdaSchedule::LoadState(const Value& state) {
  LOCKSTEP_ASSIGN_OR_RETURN(const int64_t step, GetCount(state, "last_epoch"));
  LOCKSTEP_ASSIGN_OR_RETURN(std::vector<double> base_rates, GetRates(state, "base_lrs", base_rates_.size()));
  try {
    SetRates(RatesAt(step, base_rates));
  } catch (const c10::Error& error) {
    return absl::InvalidArgumentError(error.what_without_backtrace());
  }
  step_count_ = static_cast<unsigned>(step);
  base_rates_ = std::move(base_rates);
  return absl::OkStatus();
}

}  // namespace lockstep
