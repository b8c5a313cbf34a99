#pragma once

#include "lockstep/launch/internal/launch_plan.h"

namespace lockstep {

/// Starts the ranks of a launch that has this host alone, again where they fail and there are restarts left, and
/// returns the exit code. The plan's launch_id must be set.
int LaunchHere(const LaunchPlan& plan);

}  // namespace lockstep
