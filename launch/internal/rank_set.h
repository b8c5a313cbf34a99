#pragma once

#include <chrono>
#include <optional>

#include "lockstep/launch/internal/companion.h"
#include "lockstep/launch/internal/first_failure.h"
#include "lockstep/launch/internal/launch_plan.h"
#include "lockstep/launch/internal/guardian.h"
#include "lockstep/launch/internal/log_files.h"
#include "lockstep/launch/internal/output_relay.h"
#include "lockstep/launch/internal/placement.h"
#include "lockstep/launch/internal/signal_watch.h"

namespace lockstep {

/// What a start of the ranks needs beside the plan. `logs` may be null where the plan has no files and no relay,
/// `companion` where there is no other host.
struct RankSetting {
  SignalWatch* signals = nullptr;
  const LogFiles* logs = nullptr;
  ConsoleWriter* out = nullptr;
  ConsoleWriter* err = nullptr;
  Guardian* guardian = nullptr;
  Companion* companion = nullptr;
  std::chrono::steady_clock::time_point begin;  ///< Of the launch, for the time limit.
};

struct RankOutcome {
  int code = 0;
  bool may_restart = false;             ///< It was a failure that another start may mend.
  bool interrupted = false;             ///< By a signal to this process.
  bool stopped = false;                 ///< Ranks ended with the plan's stop_code.
  std::optional<FirstFailure> failure;  ///< Of a rank of this host that wasn't told to end.
};

/// Starts all ranks of this host once, and waits until they have ended.
RankOutcome RunRankSet(const LaunchPlan& plan, const Placement& placement, const RankSetting& setting);

}  // namespace lockstep
