#pragma once

#include <torch/optim/optimizer.h>

#include <cstdint>
#include <functional>
#include <vector>

#include "lockstep/optim/schedule.h"

namespace lockstep {

/// The learning rate of a step, which counts from 0, made of a parameter group's base rate.
using RateFunction = std::function<double(int64_t step, double base_rate)>;

/// Rates as a function of the step. `warmup_schedules.h` and `decay_schedules.h` have the usual ones; one of your own:
///
///     LambdaSchedule schedule(optimizer, [](int64_t step, double base_rate) { return base_rate / (1 + step); });
///
/// A step's rates don't depend on those before it, so that what else changes the optimizer's rates in between is undone
/// by the next step.
class LambdaSchedule : public Schedule {
 public:
  /// Each group's base rate is the one that it has now.
  LambdaSchedule(torch::optim::Optimizer& optimizer, RateFunction rate);

  /// {"last_epoch", "base_lrs"}, by which Python's schedules call them.
  Value SaveState() override;
  absl::Status LoadState(const Value& state) override;

 protected:
  /// With other base rates, one for each group.
  LambdaSchedule(torch::optim::Optimizer& optimizer, RateFunction rate, std::vector<double> base_rates);

  std::vector<double> get_lrs() override;

 private:
  std::vector<double> RatesAt(int64_t step, const std::vector<double>& base_rates) const;

  const RateFunction rate_;
  std::vector<double> base_rates_;
};

}  // namespace lockstep
