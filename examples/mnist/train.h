#pragma once

#include <absl/status/status.h>
#include <c10/core/ScalarType.h>

#include <optional>

#include "lockstep/comm/collectives.h"
#include "lockstep/examples/mnist/config.h"
#include "lockstep/examples/mnist/run_folder.h"
#include "lockstep/trainer/stop_signals.h"

namespace mnist {

/// What --amp comes to: bfloat16, float16, or nothing.
std::optional<at::ScalarType> AutocastType(const Config& config, bool cuda);

/// One rank's part: reads the data, trains, and evaluates the best checkpoint on the test part. Collective.
absl::Status Train(const Config& config, const Plan& plan, const RunFolder& paths, const lockstep::StopSignals& signals,
                   const lockstep::ProcessGroupPtr& group);

}  // namespace mnist
