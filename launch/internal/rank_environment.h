#pragma once

#include <string>
#include <vector>

#include "lockstep/launch/internal/launch_plan.h"
#include "lockstep/launch/internal/placement.h"

namespace lockstep {

/// The whole environment of a rank, as "NAME=value": ours, with what torchrun sets. `error_file` is for
/// TORCHELASTIC_ERROR_FILE; empty: not set.
std::vector<std::string> RankEnvironment(const LaunchPlan& plan, const Placement& placement, int local_rank,
                                         const std::string& error_file);

}  // namespace lockstep
