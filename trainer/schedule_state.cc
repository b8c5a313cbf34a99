#include "lockstep/trainer/schedule_state.h"

#include <cstdint>
#include <limits>

#include "lockstep/checkpoint/stateful.h"

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
  const Value* const count = state.find("step_count");
  const auto number = count == nullptr ? absl::InvalidArgumentError("it has no 'step_count'") : count->number();
  if (!number.ok()) return number.status();
  if (!(*number >= 0 && *number <= std::numeric_limits<unsigned>::max())) {
    return absl::InvalidArgumentError("'step_count' makes no sense");
  }
  StepCount::Of(scheduler) = static_cast<unsigned>(*number);
  return absl::OkStatus();
}

}  // namespace lockstep
