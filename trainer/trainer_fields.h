#pragma once

#include <string>

#include "lockstep/config/config_fields.h"
#include "lockstep/trainer/trainer_options.h"

namespace lockstep {

/// Binds every number and switch of the trainer's options to names below `prefix` ("trainer." gives
/// `trainer.limits.max_steps`, `trainer.gradients.accumulate`, …). Not bound, since programs name or derive them
/// themselves: epochs, device, autocast, join, best_path and its failures, and the run's configuration and seed.
void AddTrainerFields(const std::string& prefix, TrainerOptions& options, ConfigFields& fields);

}  // namespace lockstep
