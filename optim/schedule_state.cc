#include "lockstep/optim/schedule_state.h"

#include <absl/strings/str_cat.h>

#include <cstdint>

#include "lockstep/base/status_macros.h"
#include "lockstep/checkpoint/stateful.h"
#include "lockstep/optim/internal/schedule_values.h"
#include "lockstep/optim/schedule.h"

namespace lockstep {
namespace {

/// The count is LibTorch's to change, and for subclasses.
struct StepCount : torch::optim::LRScheduler {
  static unsigned& Of(torch::optim::LRScheduler& scheduler) { return scheduler.*(&StepCount::step_count_); }
};

}  // namespace

Value ScheduleState(torch::optim::LRScheduler& scheduler) {
  if (auto* stateful = dynamic_cast<Stateful*>(&scheduler)) return stateful->SaveState();
  Value state((ValueDict()));
  state.set("step_count", static_cast<int64_t>(StepCount::Of(scheduler)));
  return state;
}

absl::Status LoadScheduleState(const Value& state, torch::optim::LRScheduler& scheduler) {
  if (auto* stateful = dynamic_cast<Stateful*>(&scheduler)) return stateful->LoadState(state);
  LOCKSTEP_ASSIGN_OR_RETURN(const int64_t count, GetCount(state, "step_count"));
  StepCount::Of(scheduler) = static_cast<unsigned>(count);
  return absl::OkStatus();
}

absl::Status StepSchedule(torch::optim::LRScheduler& scheduler, const std::map<std::string, double>& metrics,
                          bool may_lack_it) {
  auto* const schedule = dynamic_cast<Schedule*>(&scheduler);
  if (schedule == nullptr || schedule->monitor().empty()) {
    scheduler.step();
    return absl::OkStatus();
  }
  const auto found = metrics.find(schedule->monitor());
  if (found == metrics.end()) {
    if (may_lack_it) return absl::OkStatus();
    std::string known;
    for (const auto& [name, value] : metrics) absl::StrAppend(&known, known.empty() ? "" : ", ", name);
    return absl::InvalidArgumentError(absl::StrCat("schedule: there is no metric '", schedule->monitor(),
                                                   "'; known: ", known.empty() ? "none" : known));
  }
  schedule->Step(found->second);
  return absl::OkStatus();
}

}  // namespace lockstep
