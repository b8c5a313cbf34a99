#pragma once

#include <absl/status/statusor.h>

#include <vector>

#include "lockstep/checkpoint/value.h"
#include "lockstep/comm/collectives.h"

namespace lockstep {

/// On rank 0 every rank's value, by rank, on the CPU; nothing on the others. InvalidArgument, on all ranks, for a value
/// that can't be saved. Collective.
absl::StatusOr<std::vector<Value>> GatherValues(const Value& mine, const ProcessGroupPtr& group);

}  // namespace lockstep
