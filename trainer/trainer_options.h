#pragma once

#include <ATen/core/ATen_fwd.h>
#include <c10/core/DeviceType.h>
#include <c10/core/ScalarType.h>

#include <cstddef>
#include <optional>
#include <string>

#include "lockstep/comm/join.h"
#include "lockstep/trainer/finite_check.h"
#include "lockstep/trainer/gradient_step.h"
#include "lockstep/trainer/run_keeper.h"
#include "lockstep/trainer/run_limits.h"

namespace lockstep {

struct TrainerOptions {
  size_t epochs = 1;
  RunLimits limits;                        ///< Steps, time, batches, validations.
  c10::DeviceType device = c10::kCPU;      ///< Where autocast works.
  std::optional<at::ScalarType> autocast;  ///< bfloat16 or float16; nothing: as the caller has it.
  FiniteCheckOptions finite;               ///< Losses that are not finite, skipped steps in a row.
  GradientStepOptions gradients;           ///< Accumulation, weights, clipping, checks.
  bool schedule_each_step = false;         ///< The scheduler steps with the optimizer, not after each epoch.
  JoinOptions join;                        ///< Used when there are joinables.
  std::string best_path;                   ///< Where the best state is kept; empty: nowhere.
  bool best_failure_is_error = true;       ///< Whether training ends when that can't be written; else a warning.
  RunKeeperOptions run;                    ///< When everything is saved, and what else a resumed run needs.
};

}  // namespace lockstep
