#pragma once

#include "lockstep/launch/internal/launch_plan.h"
#include "lockstep/launch/internal/launcher_options.h"

namespace lockstep {

/// The same as LaunchHere where other hosts take part: meets their launchers, starts this host's ranks whenever the
/// meeting says so, and returns the exit code that all launchers return.
int LaunchWithOthers(LaunchPlan plan, const MeetingOptions& options);

}  // namespace lockstep
