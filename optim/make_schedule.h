#pragma once

#include <absl/status/statusor.h>
#include <torch/optim/optimizer.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/optim/schedule.h"

namespace lockstep {

/// A schedule as a configuration file names it. What a kind does not have must not be given; what it has and is not
/// given is as that kind's own header says. `*`: has to be given.
///
///     constant           warmup_steps                                            warmup_schedules.h
///     linear             warmup_steps, total_steps*
///     cosine             warmup_steps, total_steps*, num_cycles
///     step               step_size*, gamma                                       decay_schedules.h
///     multi_step         milestones*, gamma
///     exponential        gamma*
///     polynomial         total_steps*, power
///     cosine_annealing   total_steps*, min_lr
///     one_cycle          total_steps*, max_lr, pct_start, anneal, cycle_momentum, base_momentum, max_momentum,
///                        div_factor, final_div_factor, three_phase               one_cycle.h
///     reduce_on_plateau  monitor, mode, factor, patience, threshold, threshold_mode, cooldown, min_lr, eps
///                                                                                reduce_on_plateau.h
struct ScheduleOptions {
  std::string kind = "constant";
  std::optional<int64_t> warmup_steps, total_steps, step_size, patience, cooldown;
  std::optional<double> num_cycles, gamma, power, pct_start, base_momentum, max_momentum, div_factor, final_div_factor;
  std::optional<double> factor, threshold, eps;
  std::optional<double> max_lr, min_lr;  ///< For all parameter groups.
  std::optional<bool> cycle_momentum, three_phase;
  std::optional<std::string> anneal;          ///< "cos" or "linear"
  std::optional<std::string> mode;            ///< "min" or "max"
  std::optional<std::string> threshold_mode;  ///< "rel" or "abs"
  std::optional<std::string> monitor;         ///< The name of a metric.
  std::vector<int64_t> milestones;
};

/// InvalidArgument, with the names of the kind and the option, for an unknown kind (the known ones are listed), an
/// option that the kind doesn't have, one that is missing, or a number that makes no sense.
absl::StatusOr<std::unique_ptr<Schedule>> MakeSchedule(const ScheduleOptions& options,
                                                       torch::optim::Optimizer& optimizer);

}  // namespace lockstep
