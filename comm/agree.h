#pragma once

#include <absl/status/status.h>

#include "lockstep/comm/collectives.h"

namespace lockstep {

/// OK when every rank's status is; else, on every rank, the error of the lowest rank that has one, naming that rank
/// when not all have the same. After it no rank waits for one that has given up. Collective.
absl::Status AgreeOnStatus(const absl::Status& mine, const ProcessGroupPtr& group);

/// Whether a status came out of AgreeOnStatus, so that one rank is enough to print it.
bool IsAgreed(const absl::Status& status);

}  // namespace lockstep
