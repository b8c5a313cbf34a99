#include "lockstep/optim/make_schedule.h"

#include <absl/status/status.h>
#include <absl/strings/str_cat.h>
#include <absl/strings/str_join.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <functional>
#include <utility>

#include "lockstep/optim/decay_schedules.h"
#include "lockstep/optim/lambda_schedule.h"
#include "lockstep/optim/one_cycle.h"
#include "lockstep/optim/reduce_on_plateau.h"
#include "lockstep/optim/warmup_schedules.h"

namespace lockstep {
namespace {

using O = ScheduleOptions;
using torch::optim::Optimizer;

template <typename T>
T Needed(const char* name, const std::optional<T>& option) {
  TORCH_CHECK(option.has_value(), name, " is missing");
  return *option;
}

template <typename To, typename T>
void Take(const std::optional<T>& option, To& into) {
  if (option) into = To(*option);
}

/// Which of two words it is: the first where it is not given.
bool IsSecond(const char* name, const std::optional<std::string>& option, const char* first, const char* second) {
  const std::string word = option.value_or(first);
  TORCH_CHECK(word == first || word == second, name, " must be '", first, "' or '", second, "', is '", word, "'");
  return word == second;
}

std::unique_ptr<Schedule> MakeOneCycle(const O& o, Optimizer& optimizer) {
  OneCycleOptions cycle;
  cycle.total_steps = Needed("total_steps", o.total_steps);
  if (o.max_lr) cycle.max_lr = {*o.max_lr};
  if (IsSecond("anneal", o.anneal, "cos", "linear")) cycle.anneal = OneCycleOptions::Anneal::kLinear;
  Take(o.pct_start, cycle.pct_start);
  Take(o.cycle_momentum, cycle.cycle_momentum);
  Take(o.base_momentum, cycle.base_momentum);
  Take(o.max_momentum, cycle.max_momentum);
  Take(o.div_factor, cycle.div_factor);
  Take(o.final_div_factor, cycle.final_div_factor);
  Take(o.three_phase, cycle.three_phase);
  return std::make_unique<OneCycle>(optimizer, cycle);
}

std::unique_ptr<Schedule> MakePlateau(const O& o, Optimizer& optimizer) {
  ReduceOnPlateauOptions plateau;
  if (IsSecond("mode", o.mode, "min", "max")) plateau.mode = ReduceOnPlateauOptions::Mode::kMax;
  if (IsSecond("threshold_mode", o.threshold_mode, "rel", "abs")) {
    plateau.threshold_mode = ReduceOnPlateauOptions::ThresholdMode::kAbs;
  }
  if (o.min_lr) plateau.min_lr = {*o.min_lr};
  Take(o.monitor, plateau.monitor);
  TORCH_CHECK(!plateau.monitor.empty(), "monitor must be the name of a metric, is empty");
  Take(o.factor, plateau.factor);
  Take(o.patience, plateau.patience);
  Take(o.threshold, plateau.threshold);
  Take(o.cooldown, plateau.cooldown);
  Take(o.eps, plateau.eps);
  return std::make_unique<ReduceOnPlateau>(optimizer, plateau);
}

struct Kind {
  std::string name;
  std::vector<std::string> options;
  std::function<std::unique_ptr<Schedule>(const O&, Optimizer&)> make;
};

/// A kind that is a function of the step.
Kind Lambda(std::string name, std::vector<std::string> options, std::function<RateFunction(const O&)> rate) {
  return {std::move(name), std::move(options), [rate = std::move(rate)](const O& o, Optimizer& optimizer) {
            return std::make_unique<LambdaSchedule>(optimizer, rate(o));
          }};
}

std::vector<Kind> Kinds() {
  return {
      Lambda("constant", {"warmup_steps"}, [](const O& o) { return ConstantWithWarmup(o.warmup_steps.value_or(0)); }),
      Lambda("linear", {"warmup_steps", "total_steps"},
             [](const O& o) {
               return LinearWithWarmup(o.warmup_steps.value_or(0), Needed("total_steps", o.total_steps));
             }),
      Lambda("cosine", {"warmup_steps", "total_steps", "num_cycles"},
             [](const O& o) {
               return CosineWithWarmup(o.warmup_steps.value_or(0), Needed("total_steps", o.total_steps),
                                       o.num_cycles.value_or(0.5));
             }),
      Lambda("step", {"step_size", "gamma"},
             [](const O& o) { return StepDecay(Needed("step_size", o.step_size), o.gamma.value_or(0.1)); }),
      Lambda("multi_step", {"milestones", "gamma"},
             [](const O& o) {
               TORCH_CHECK(!o.milestones.empty(), "milestones is missing");
               return MultiStepDecay(o.milestones, o.gamma.value_or(0.1));
             }),
      Lambda("exponential", {"gamma"}, [](const O& o) { return ExponentialDecay(Needed("gamma", o.gamma)); }),
      Lambda("polynomial", {"total_steps", "power"},
             [](const O& o) { return PolynomialDecay(Needed("total_steps", o.total_steps), o.power.value_or(1)); }),
      Lambda("cosine_annealing", {"total_steps", "min_lr"},
             [](const O& o) { return CosineAnnealing(Needed("total_steps", o.total_steps), o.min_lr.value_or(0)); }),
      {"one_cycle",
       {"total_steps", "max_lr", "pct_start", "anneal", "cycle_momentum", "base_momentum", "max_momentum", "div_factor",
        "final_div_factor", "three_phase"},
       MakeOneCycle},
      {"reduce_on_plateau",
       {"monitor", "mode", "factor", "patience", "threshold", "threshold_mode", "cooldown", "min_lr", "eps"},
       MakePlateau},
  };
}

/// The names of those that are given.
std::vector<std::string> Given(const O& o) {
  std::vector<std::string> names;
  const auto add = [&](const char* name, bool given) {
    if (given) names.push_back(name);
  };
#define LOCKSTEP_GIVEN(option) add(#option, o.option.has_value())
  LOCKSTEP_GIVEN(warmup_steps);
  LOCKSTEP_GIVEN(total_steps);
  LOCKSTEP_GIVEN(step_size);
  LOCKSTEP_GIVEN(patience);
  LOCKSTEP_GIVEN(cooldown);
  LOCKSTEP_GIVEN(num_cycles);
  LOCKSTEP_GIVEN(gamma);
  LOCKSTEP_GIVEN(power);
  LOCKSTEP_GIVEN(pct_start);
  LOCKSTEP_GIVEN(base_momentum);
  LOCKSTEP_GIVEN(max_momentum);
  LOCKSTEP_GIVEN(div_factor);
  LOCKSTEP_GIVEN(final_div_factor);
  LOCKSTEP_GIVEN(factor);
  LOCKSTEP_GIVEN(threshold);
  LOCKSTEP_GIVEN(eps);
  LOCKSTEP_GIVEN(max_lr);
  LOCKSTEP_GIVEN(min_lr);
  LOCKSTEP_GIVEN(cycle_momentum);
  LOCKSTEP_GIVEN(three_phase);
  LOCKSTEP_GIVEN(anneal);
  LOCKSTEP_GIVEN(mode);
  LOCKSTEP_GIVEN(threshold_mode);
  LOCKSTEP_GIVEN(monitor);
#undef LOCKSTEP_GIVEN
  add("milestones", !o.milestones.empty());
  return names;
}

}  // namespace

absl::StatusOr<std::unique_ptr<Schedule>> MakeSchedule(const ScheduleOptions& options, Optimizer& optimizer) {
  const std::vector<Kind> kinds = Kinds();
  const auto kind =
      std::find_if(kinds.begin(), kinds.end(), [&](const Kind& known) { return known.name == options.kind; });
  if (kind == kinds.end()) {
    const auto name = [](std::string* out, const Kind& known) { absl::StrAppend(out, known.name); };
    return absl::InvalidArgumentError(
        absl::StrCat("unknown schedule '", options.kind, "'; known: ", absl::StrJoin(kinds, ", ", name)));
  }
  const std::string where = absl::StrCat("schedule '", kind->name, "': ");
  for (const std::string& name : Given(options)) {
    if (std::find(kind->options.begin(), kind->options.end(), name) == kind->options.end()) {
      return absl::InvalidArgumentError(
          absl::StrCat(where, "it has no ", name, "; it has: ", absl::StrJoin(kind->options, ", ")));
    }
  }
  try {
    return kind->make(options, optimizer);
  } catch (const c10::Error& error) {
    return absl::InvalidArgumentError(absl::StrCat(where, error.what_without_backtrace()));
  }
}

}  // namespace lockstep
