#pragma once

#include <absl/status/status.h>
#include <torch/optim/schedulers/lr_scheduler.h>

#include <map>
#include <string>

#include "lockstep/checkpoint/value.h"

namespace lockstep {

/// {"step_count"} of one of LibTorch's schedulers (the learning rates are in the optimizer's state); what a scheduler
/// says itself that is Stateful.
Value ScheduleState(torch::optim::LRScheduler& scheduler);

/// InvalidArgument, and nothing is changed, for what is no such state.
absl::Status LoadScheduleState(const Value& state, torch::optim::LRScheduler& scheduler);

/// The scheduler's step(); for a Schedule that goes by a metric, with that one. Where `metrics` has no such metric, a
/// schedule that goes by it stays as it is if `may_lack_it`; else that is InvalidArgument, and the known ones are
/// listed.
absl::Status StepSchedule(torch::optim::LRScheduler& scheduler, const std::map<std::string, double>& metrics,
                          bool may_lack_it = false);

}  // namespace lockstep
