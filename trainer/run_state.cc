#include "lockstep/trainer/run_state.h"

#include <absl/status/status.h>
#include <absl/strings/str_cat.h>

#include <utility>

#include "lockstep/base/prefixed.h"
#include "lockstep/base/status_macros.h"
#include "lockstep/base/version.h"
#include "lockstep/checkpoint/stateful.h"
#include "lockstep/comm/agree.h"
#include "lockstep/optim/schedule_state.h"
#include "lockstep/trainer/generators.h"

#include "lockstep/base/logging.h"

namespace lockstep {
namespace {

constexpr int kFormat = 1;  // of what is under "run"

Stateful* ReducerOf(const RunParts& parts) {
  return parts.ddp == nullptr ? nullptr : dynamic_cast<Stateful*>(&parts.ddp->reducer());
}

/// A communication hook that has a state is part of the run, whether the user has named it or not.
TrainingParts WithHook(const RunParts& parts) {
  TrainingParts state = parts.state;
  const auto* reducer = parts.ddp == nullptr ? nullptr : parts.ddp->bucketed_reducer();
  auto* const hook = reducer == nullptr ? nullptr : reducer->stateful_hook();
  bool is_named = hook == nullptr;
  for (const auto& [name, other] : state.others) is_named |= other == hook;
  if (!is_named) state.others.emplace("communication_hook", hook);
  return state;
}

absl::Status CheckGenerators(const RunProgress& progress, c10::DeviceType device) {
  const Value now = GeneratorsState(device);
  absl::Status status;
  for (const Value* state : {&progress.generators, &progress.generators_at_start, &progress.generators_before_batch}) {
    if (status.ok()) status = LoadGeneratorsState(*state, device);
  }
  const absl::Status back = LoadGeneratorsState(now, device);
  return status.ok() ? back : status;
}

absl::StatusOr<LoadedRun> Load(const Value& checkpoint, const RunParts& parts, const ProcessGroupPtr& group) {
  LoadedRun loaded;
  const Value* const run = checkpoint.find("run");
  if (run == nullptr) {
    LOCKSTEP_ASSIGN_OR_RETURN(const size_t epoch, LoadTrainingState(checkpoint, parts.state));
    loaded.progress.epoch = epoch + 1;
    loaded.world_size = GetWorldSize(group);
    return loaded;
  }
  const Value* const format = run->find("format");
  if (format == nullptr || !format->number().ok() || *format->number() != kFormat) {
    const Value* const version = run->find("version");
    return absl::InvalidArgumentError(absl::StrCat(
        "'run' is of another version of this library",
        version != nullptr && version->string() != nullptr ? ", " + *version->string() : "", "; this is ", kVersion));
  }
  // First what may not fit, then what changes something.
  const Value* const progress = run->find("progress");
  if (progress == nullptr) return absl::InvalidArgumentError("'run' has no 'progress'");
  const auto read = LoadRunProgress(
      *progress, [&](const ValueList& windows) { return parts.gradients->ForOtherWorld(windows, group); }, group);
  LOCKSTEP_RETURN_IF_ERROR(Prefixed("'run', 'progress': ", read.status()));
  loaded = *read;
  LOCKSTEP_RETURN_IF_ERROR(LoadTrainingState(checkpoint, WithHook(parts)).status());
  LOCKSTEP_RETURN_IF_ERROR(
      Prefixed("'run', 'window': ", parts.gradients->LoadState(loaded.progress.window, *parts.state.module)));
  if (const Value* const schedule = run->find("schedule"); schedule != nullptr && parts.scheduler != nullptr) {
    LOCKSTEP_RETURN_IF_ERROR(Prefixed("'run', 'schedule': ", LoadScheduleState(*schedule, *parts.scheduler)));
  }
  if (const Value* const reducer = run->find("reducer"); reducer != nullptr && ReducerOf(parts) != nullptr) {
    const absl::Status status = ReducerOf(parts)->LoadState(*reducer);
    if (!status.ok() && GetRank(group) == 0) {
      LOG(WARNING) << "the buckets of gradients are made anew, and sums may differ in their last bits: "
                   << status.message();
    }
  }
  return loaded;
}

}  // namespace

absl::StatusOr<Value> SaveRunState(const RunParts& parts, const RunProgress& progress, const std::string& config,
                                   const ProcessGroupPtr& group) {
  Value run((ValueDict()));
  run.set("format", kFormat);
  run.set("version", kVersion);
  run.set("config", config);
  LOCKSTEP_ASSIGN_OR_RETURN(Value saved, SaveRunProgress(progress, group));
  run.set("progress", std::move(saved));
  if (parts.scheduler != nullptr) run.set("schedule", ScheduleState(*parts.scheduler));
  if (Stateful* const reducer = ReducerOf(parts)) run.set("reducer", reducer->SaveState());
  LOCKSTEP_ASSIGN_OR_RETURN(Value state, SaveTrainingState(WithHook(parts), progress.epoch - 1));
  state.set("run", std::move(run));
  return state;
}

absl::StatusOr<LoadedRun> LoadRunState(const Value& checkpoint, const RunParts& parts, c10::DeviceType device,
                                       const ProcessGroupPtr& group) {
  auto loaded = Load(checkpoint, parts, group);
  if (loaded.ok()) {
    const absl::Status fits = CheckGenerators(loaded->progress, device);
    if (!fits.ok()) loaded = Prefixed("'run': ", fits);
  }
  LOCKSTEP_RETURN_IF_ERROR(AgreeOnStatus(loaded.status(), group));
  const size_t now = GetWorldSize(group), before = loaded->world_size;
  if (now != before && GetRank(group) == 0) {
    LOG(WARNING) << "going on with " << now << " rank" << (now == 1 ? "" : "s") << " instead of " << before
                 << (loaded->progress.in_epoch
                         ? absl::StrCat(": the rest of epoch ", loaded->progress.epoch, " is shared out anew")
                         : "")
                 << (now > before ? absl::StrCat("; ranks from ", before, " on have random generators of their own")
                                  : "")
                 << "; sums over ranks differ in their last bits";
  }
  return loaded;
}

absl::Status TakeGenerators(const LoadedRun& loaded, c10::DeviceType device, uint64_t seed,
                            const ProcessGroupPtr& group) {
  const RunProgress& progress = loaded.progress;
  const size_t rank = GetRank(group);
  absl::Status status;
  if (!progress.generators.is_none()) {
    status = LoadGeneratorsState(progress.generators, device);
  } else if (rank >= loaded.world_size) {
    SeedGenerators(seed, static_cast<int>(rank), progress.total_steps);
  }
  return AgreeOnStatus(status, group);
}

void LogUnfinishedStep(size_t epoch, const ProcessGroupPtr& group) {
  if (GetRank(group) != 0) return;
  LOG(WARNING) << "epoch " << epoch << ": no batch is left to finish its last step with; its gradients are dropped";
}

void LogEpochAgain(size_t epoch, const ProcessGroupPtr& group) {
  if (GetRank(group) != 0) return;
  LOG(WARNING) << "epoch " << epoch << " begins again: its data can't tell which samples are left of it";
}

}  // namespace lockstep
