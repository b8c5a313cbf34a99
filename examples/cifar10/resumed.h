#pragma once

#include <absl/status/status.h>
#include <torch/optim/optimizer.h>

#include <string>

#include "lockstep/checkpoint/value.h"
#include "lockstep/examples/cifar10/config.h"
#include "lockstep/optim/schedule.h"

namespace cifar10 {

/// Whether the run of a checkpoint can go on with this configuration. InvalidArgument for another model, seed or kind
/// of schedule; with `logs` all else that differs, which is taken, is said in the log.
absl::Status CheckResumed(const lockstep::Value& checkpoint, const lockstep::ConfigFields& now, bool logs);

/// After Trainer::Resume, which brings the rates of the checkpoint back: what the configuration says now counts, from
/// the step on where the run stands. `configured` is the schedule's state when it was made.
absl::Status TakeSettings(const lockstep::Value& checkpoint, const Config& config, const lockstep::Value& configured,
                          torch::optim::Optimizer& optimizer, lockstep::Schedule& schedule);

}  // namespace cifar10
