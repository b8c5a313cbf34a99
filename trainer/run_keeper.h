#pragma once

#include <absl/status/statusor.h>
#include <c10/core/DeviceType.h>

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>

#include "lockstep/checkpoint/checkpointer.h"
#include "lockstep/checkpoint/value.h"
#include "lockstep/comm/collectives.h"
#include "lockstep/trainer/checkpoint_pace.h"
#include "lockstep/trainer/finite_check.h"
#include "lockstep/trainer/run_progress.h"
#include "lockstep/trainer/run_state.h"
#include "lockstep/trainer/stop_signals.h"

namespace lockstep {

struct RunKeeperOptions {
  CheckpointIntervals checkpoints;  ///< When the checkpointer saves.
  std::string config;               ///< Is saved with each checkpoint, for people and for whoever resumes.
  uint64_t seed = 0;                ///< Of the generators of ranks that join a resumed run.
  int stop_exit_code = 75;          ///< After a signal; a scheduler starts a program again that ends with it.
};

/// Keeps where a trainer's run stands, saves it when that is due, and takes it up again. Every rank calls the same.
class RunKeeper {
 public:
  /// Nothing is owned; checkpointer and signals may be null. `hears_wishes`: of AfterBatch, whatever else there is.
  /// `device`: whose random generators belong to the run.
  RunKeeper(RunKeeperOptions options, RunParts parts, FiniteCheck* finite, Checkpointer* checkpointer,
            const StopSignals* signals, bool hears_wishes, c10::DeviceType device, ProcessGroupPtr group);

  /// Where the run stands; the trainer writes down its steps here.
  RunProgress& progress() { return progress_; }
  const RunProgress& progress() const { return progress_; }

  /// Trainer::Resume.
  absl::Status Resume(const Value& checkpoint);
  /// Before the first epoch: begins anew, or puts a resumed run's generators back and says whether it had stopped.
  /// Collective.
  absl::StatusOr<bool> Start();
  /// The run in the middle of whose epoch the training goes on, once; then and otherwise nothing.
  std::optional<LoadedRun> TakeResumed();
  /// Nothing of `epoch` is done.
  void BeginEpoch(size_t epoch);
  /// Its pass begins. The generators are noted, if they will be needed.
  void BeginPass();

  /// Of which device the generators are to be noted before each batch is fetched; nothing: they are not needed.
  std::optional<c10::DeviceType> noted_generators() const;
  struct Moment {
    bool ends_step = false;                         ///< The batch is the last of a step.
    bool ends_run = false;                          ///< With this step, as all ranks know.
    bool wish = false;                              ///< This rank's, for the run to end.
    const Value* generators_before_next = nullptr;  ///< See BatchStream.
    std::optional<size_t> taken;                    ///< Samples of this rank since the pass began, if known.
  };
  /// After a batch. Whether the run ends here, and is saved: it can go on from here. After a signal: EndWithCode.
  /// Errors: the checkpointer's, and those of the finite check. Collective.
  absl::StatusOr<bool> AfterBatch(const Moment& moment);
  /// After an epoch, with its metrics; `over`: no epoch follows. Collective.
  absl::Status AfterEpoch(const std::map<std::string, double>& metrics, bool over);
  /// Waits for the last save. Collective.
  absl::Status Finish();

 private:
  absl::Status Save(size_t epoch, const std::map<std::string, double>& metrics);
  absl::Status Stop(const std::string& when);

  const RunKeeperOptions options_;
  const RunParts parts_;
  FiniteCheck* const finite_;
  Checkpointer* const checkpointer_;
  const c10::DeviceType device_;
  const ProcessGroupPtr group_;
  CheckpointPace pace_;
  RunProgress progress_;
  std::optional<LoadedRun> resumed_;  // until the training has taken it up
};

}  // namespace lockstep
