#include "lockstep/trainer/run_keeper.h"

#include <absl/strings/str_cat.h>

#include <utility>

#include "lockstep/base/exit_code.h"
#include "lockstep/base/status_macros.h"
#include "lockstep/trainer/generators.h"

namespace lockstep {

RunKeeper::RunKeeper(RunKeeperOptions options, RunParts parts, FiniteCheck* finite, Checkpointer* checkpointer,
                     const StopSignals* signals, bool hears_wishes, c10::DeviceType device, ProcessGroupPtr group)
    : options_(std::move(options)),
      parts_(std::move(parts)),
      finite_(finite),
      checkpointer_(checkpointer),
      device_(device),
      group_(std::move(group)),
      pace_(options_.checkpoints, signals, hears_wishes, group_) {}

absl::Status RunKeeper::Resume(const Value& checkpoint) {
  LOCKSTEP_ASSIGN_OR_RETURN(resumed_, LoadRunState(checkpoint, parts_, device_, group_));
  progress_ = resumed_->progress;
  finite_->set_state(progress_.skip_streak);
  return absl::OkStatus();
}

absl::StatusOr<bool> RunKeeper::Start() {
  if (!resumed_) {
    progress_ = {};
    return false;
  }
  LOCKSTEP_RETURN_IF_ERROR(TakeGenerators(*resumed_, device_, options_.seed, group_));
  if (!progress_.in_epoch) resumed_.reset();
  return AnyRank(!parts_.state.stop->reason().empty(), group_);
}

std::optional<LoadedRun> RunKeeper::TakeResumed() { return std::exchange(resumed_, std::nullopt); }

void RunKeeper::BeginEpoch(size_t epoch) {
  const size_t total_steps = progress_.total_steps;
  progress_ = {};
  progress_.epoch = epoch;
  progress_.total_steps = total_steps;
}

void RunKeeper::BeginPass() {
  progress_.in_epoch = true;
  if (noted_generators()) progress_.generators_at_start = GeneratorsState(device_);
}

std::optional<c10::DeviceType> RunKeeper::noted_generators() const {
  return checkpointer_ == nullptr ? std::nullopt : std::optional(device_);
}

absl::StatusOr<bool> RunKeeper::AfterBatch(const Moment& moment) {
  const CheckpointPace::Due due = pace_.AfterBatch(moment.ends_step, progress_.total_steps, moment.wish);
  const bool ends = due.end || (moment.ends_step && moment.ends_run);
  if (!due.save && !due.stop && !ends) return false;
  progress_.generators_before_batch = *moment.generators_before_next;
  progress_.taken = moment.taken ? Value(static_cast<int64_t>(*moment.taken)) : Value();
  LOCKSTEP_RETURN_IF_ERROR(Save(progress_.epoch, {}));
  if (!due.stop) return ends;
  return Stop(absl::StrCat("in epoch ", progress_.epoch, " after step ", progress_.step));
}

absl::Status RunKeeper::AfterEpoch(const std::map<std::string, double>& metrics, bool over) {
  const size_t epoch = progress_.epoch;
  BeginEpoch(epoch + 1);
  const CheckpointPace::Due due = pace_.AfterEpoch(epoch);
  if (due.save || due.stop || over) LOCKSTEP_RETURN_IF_ERROR(Save(epoch, metrics));
  return due.stop && !over ? Stop(absl::StrCat("after epoch ", epoch)) : absl::OkStatus();
}

absl::Status RunKeeper::Finish() { return checkpointer_ == nullptr ? absl::OkStatus() : checkpointer_->Wait(); }

absl::Status RunKeeper::Save(size_t epoch, const std::map<std::string, double>& metrics) {
  if (checkpointer_ == nullptr) return absl::OkStatus();
  LOCKSTEP_RETURN_IF_ERROR(finite_->Check());  // no checkpoint of a run that is lost already
  progress_.skip_streak = finite_->state();
  progress_.window = parts_.gradients->SaveState(*parts_.state.module);
  progress_.generators = GeneratorsState(device_);
  LOCKSTEP_ASSIGN_OR_RETURN(const Value state, SaveRunState(parts_, progress_, options_.config, group_));
  pace_.Saved();
  return checkpointer_->Save(state, {epoch, progress_.total_steps, metrics});
}

absl::Status RunKeeper::Stop(const std::string& when) {
  LOCKSTEP_RETURN_IF_ERROR(Finish());
  return EndWithCode(options_.stop_exit_code,
                     absl::StrCat("stopped by a signal ", when,
                                  checkpointer_ == nullptr ? "; there is no checkpoint to go on from"
                                                           : "; to be resumed from the latest checkpoint"));
}

}  // namespace lockstep
