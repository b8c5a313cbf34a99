#pragma once

#include <absl/status/status.h>

#include <optional>
#include <string>

#include "lockstep/launch/internal/rank_set.h"

namespace lockstep {

/// What lasts from the first start of a launch's ranks to the last: watched signals, the guardian, log folders, the
/// console's writers.
class LaunchStage {
 public:
  /// Before other threads exist, since they must not get the signals.
  explicit LaunchStage(const LaunchPlan& plan);
  LaunchStage(const LaunchStage&) = delete;
  LaunchStage& operator=(const LaunchStage&) = delete;

  /// Whether the folders and threads that it takes could be had.
  const absl::Status& ready() const { return ready_; }

  /// For RunRankSet.
  const RankSetting& setting() const { return setting_; }
  RankSetting& setting() { return setting_; }

  /// To standard error, after what ranks have written: which rank failed first and what it had to say. Nothing where
  /// ranks write to the console themselves and left no error file: the line that said it at once is enough.
  void Report(const FirstFailure& failure);

  /// The same way, any text. Nobody waits for a console that stands still.
  void Say(const std::string& text);

 private:
  const LaunchPlan& plan_;
  absl::Status ready_;
  std::optional<LogFiles> logs_;
  std::optional<ConsoleWriter> out_, err_;
  Guardian guardian_;
  SignalWatch signals_;  // ends first: while the writers wait for a console that stands still, Ctrl-C ends us
  RankSetting setting_;
};

}  // namespace lockstep
