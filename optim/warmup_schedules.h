#pragma once

#include <cstdint>

#include "lockstep/optim/lambda_schedule.h"

namespace lockstep {

// Rates that first rise from 0 to the base rate, by base_rate / warmup_steps a step, as the schedules of
// `transformers.optimization` (get_*_schedule_with_warmup) do, number for number:
//
//     LambdaSchedule schedule(optimizer, CosineWithWarmup(/*warmup_steps=*/10, /*total_steps=*/1000));
//
// They throw c10::Error for negative numbers of steps. `total_steps` counts those of the warm-up; after it the rate
// stays 0 (where a cosine ends in 0).

/// Then the base rate.
RateFunction ConstantWithWarmup(int64_t warmup_steps);

/// Then in a line down to 0 at `total_steps`.
RateFunction LinearWithWarmup(int64_t warmup_steps, int64_t total_steps);

/// Then `num_cycles` waves of a cosine between the base rate and 0: half a one, which is the default, ends in 0.
RateFunction CosineWithWarmup(int64_t warmup_steps, int64_t total_steps, double num_cycles = 0.5);

}  // namespace lockstep
