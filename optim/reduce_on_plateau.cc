#include "lockstep/optim/reduce_on_plateau.h"

#include <absl/status/status.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "lockstep/base/status_macros.h"
#include "lockstep/optim/internal/schedule_values.h"

namespace lockstep {
namespace {

ReduceOnPlateauOptions Checked(ReduceOnPlateauOptions options, size_t groups) {
  TORCH_CHECK(options.factor >= 0 && options.factor < 1, "factor must be from 0 to below 1, is ", options.factor);
  TORCH_CHECK(options.patience >= 0, "patience must not be negative, is ", options.patience);
  TORCH_CHECK(options.cooldown >= 0, "cooldown must not be negative, is ", options.cooldown);
  TORCH_CHECK(std::isfinite(options.threshold) && options.threshold >= 0,
              "threshold must be a finite number from 0 on, is ", options.threshold);
  TORCH_CHECK(std::isfinite(options.eps) && options.eps >= 0, "eps must be a finite number from 0 on, is ",
              options.eps);
  auto& rates = options.min_lr;
  for (const double rate : rates) {
    TORCH_CHECK(std::isfinite(rate) && rate >= 0, "min_lr must be a finite number from 0 on, is ", rate);
  }
  if (rates.size() < 2) rates.resize(groups, rates.empty() ? 0 : rates[0]);
  TORCH_CHECK(rates.size() == groups, "min_lr has ", rates.size(), " numbers, the optimizer has ", groups,
              " parameter groups");
  return options;
}

}  // namespace

ReduceOnPlateau::ReduceOnPlateau(torch::optim::Optimizer& optimizer, ReduceOnPlateauOptions options)
    : Schedule(optimizer),
      options_(Checked(std::move(options), optimizer.param_groups().size())),
      best_(options_.mode == ReduceOnPlateauOptions::Mode::kMin ? std::numeric_limits<double>::infinity()
                                                                : -std::numeric_limits<double>::infinity()) {}

void ReduceOnPlateau::Step(std::optional<double> metric) {
  metric_ = metric;
  step();
}

bool ReduceOnPlateau::Better(double metric) const {
  const bool relative = options_.threshold_mode == ReduceOnPlateauOptions::ThresholdMode::kRel;
  if (options_.mode == ReduceOnPlateauOptions::Mode::kMin) {
    return metric < (relative ? best_ * (1 - options_.threshold) : best_ - options_.threshold);
  }
  return metric > (relative ? best_ * (options_.threshold + 1) : best_ + options_.threshold);
}

std::vector<double> ReduceOnPlateau::get_lrs() {
  TORCH_CHECK(metric_.has_value(), "ReduceOnPlateau goes by a metric: call Step(metric), not step()");
  const double metric = *std::exchange(metric_, std::nullopt);
  if (Better(metric)) {
    best_ = metric;
    bad_ = 0;
  } else {
    ++bad_;
  }
  if (cooldown_ > 0) {
    --cooldown_;
    bad_ = 0;
  }
  std::vector<double> rates = Rates();
  if (bad_ <= options_.patience) return rates;
  cooldown_ = options_.cooldown;
  bad_ = 0;
  for (size_t i = 0; i < rates.size(); ++i) {
    const double reduced = std::max(rates[i] * options_.factor, options_.min_lr.at(i));
    if (rates[i] - reduced > options_.eps) rates[i] = reduced;
  }
  return rates;
}

Value ReduceOnPlateau::SaveState() {
  Value state((ValueDict()));
  state.set("best", best_);
  state.set("num_bad_epochs", bad_);
  state.set("cooldown_counter", cooldown_);
  state.set("last_epoch", int64_t{step_count_});
  state.set("_last_lr", NumberList(Rates()));
  return state;
}

absl::Status ReduceOnPlateau::LoadState(const Value& state) {
  LOCKSTEP_ASSIGN_OR_RETURN(const double best, GetNumber(state, "best"));
  LOCKSTEP_ASSIGN_OR_RETURN(const int64_t bad, GetCount(state, "num_bad_epochs"));
  LOCKSTEP_ASSIGN_OR_RETURN(const int64_t cooldown, GetCount(state, "cooldown_counter"));
  LOCKSTEP_ASSIGN_OR_RETURN(const int64_t steps, GetCount(state, "last_epoch"));
  LOCKSTEP_ASSIGN_OR_RETURN(const auto rates, GetRates(state, "_last_lr", options_.min_lr.size()));
  if (std::isnan(best)) return absl::InvalidArgumentError("'best' makes no sense: nan");
  best_ = best;
  bad_ = bad;
  cooldown_ = cooldown;
  step_count_ = static_cast<unsigned>(steps);
  SetRates(rates);
  return absl::OkStatus();
}

}  // namespace lockstep
