#pragma once

#include <absl/status/status.h>

#include "lockstep/comm/collectives.h"

namespace lockstep {

/// What a save that failed, on all ranks alike, comes to: itself, or, where that is no error, a warning of rank 0 and
/// OK.
absl::Status ErrorOrWarning(const absl::Status& saved, bool failure_is_error, const ProcessGroupPtr& group);

}  // namespace lockstep
