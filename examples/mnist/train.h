#pragma once

#include <absl/status/status.h>

#include "lockstep/comm/collectives.h"
#include "lockstep/examples/mnist/config.h"
#include "lockstep/examples/mnist/run_folder.h"

namespace mnist {

/// One rank's part: reads the data, trains, and evaluates the best checkpoint on the test part. Collective.
absl::Status Train(const Config& config, const Plan& plan, const RunFolder& paths,
                   const lockstep::ProcessGroupPtr& group);

}  // namespace mnist
