#pragma once

#include <chrono>
#include <cstddef>

#include "lockstep/comm/collectives.h"
#include "lockstep/trainer/lagging_flags.h"
#include "lockstep/trainer/stop_signals.h"

namespace lockstep {

/// When a run is saved; 0: not for that reason. The end of a run always is a reason, and so is a signal.
struct CheckpointIntervals {
  size_t steps = 0;
  size_t epochs = 1;
  double minutes = 0;  ///< By rank 0's clock.
};

/// Decides, on all ranks alike, when to save and when to stop. Costs nothing without minutes, signals and wishes, else
/// a small all-reduce a batch that nobody waits for.
class CheckpointPace {
 public:
  struct Due {
    bool save = false;
    bool stop = false;  ///< For a signal.
    bool end = false;   ///< As some rank wished.
  };

  /// `signals` may be null. `hears_wishes`: also when there is nothing else for the ranks to tell each other.
  CheckpointPace(CheckpointIntervals intervals, const StopSignals* signals, bool hears_wishes, ProcessGroupPtr group);

  /// After a batch, which ends a step or not; `steps`: so far; `wish`: this rank's, for an end. Saves and ends are due
  /// after steps, stops also between them. Collective.
  Due AfterBatch(bool ends_step, size_t steps, bool wish);
  /// After an epoch, at once. Collective.
  Due AfterEpoch(size_t epoch);
  /// A save was made: minutes count from now.
  void Saved();

 private:
  bool talks() const { return signals_ != nullptr || intervals_.minutes > 0 || hears_wishes_; }
  LaggingFlags::Flags Mine(bool wish) const;

  const CheckpointIntervals intervals_;
  const StopSignals* const signals_;
  const bool hears_wishes_;
  const ProcessGroupPtr group_;
  LaggingFlags flags_;
  std::chrono::steady_clock::time_point saved_ = std::chrono::steady_clock::now();
  bool minutes_due_ = false, end_due_ = false;
  bool just_saved_ = false;  // the next answer was asked for before
};

}  // namespace lockstep
