#pragma once

#include <absl/status/status.h>

#include "lockstep/comm/collectives.h"
#include "lockstep/config/config_fields.h"
#include "lockstep/examples/cifar10/config.h"
#include "lockstep/trainer/stop_signals.h"

namespace cifar10 {

/// The whole job of one rank. Collective.
absl::Status Train(const Config& config, const lockstep::ConfigFields& fields, const Plan& plan,
                   const lockstep::StopSignals& signals, const lockstep::ProcessGroupPtr& group);

}  // namespace cifar10
