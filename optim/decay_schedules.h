#pragma once

#include <cstdint>
#include <vector>

#include "lockstep/optim/lambda_schedule.h"

namespace lockstep {

// The rates of Python's schedules of similar names (torch.optim.lr_scheduler), in closed form:
//
//     LambdaSchedule schedule(optimizer, StepDecay(/*step_size=*/30));
//
// They throw c10::Error for numbers that make no sense.

/// Times `gamma` every `step_size` steps (StepLR).
RateFunction StepDecay(int64_t step_size, double gamma = 0.1);

/// Times `gamma` at each of the milestones, in any order; at one that is there n times, by its n-th power
/// (MultiStepLR).
RateFunction MultiStepDecay(std::vector<int64_t> milestones, double gamma = 0.1);

/// Times `gamma` each step (ExponentialLR).
RateFunction ExponentialDecay(double gamma);

/// Down to 0 at `total_steps`, as (1 - step / total_steps) to the `power`-th (PolynomialLR).
RateFunction PolynomialDecay(int64_t total_steps, double power = 1);

/// Half a wave of a cosine down to `min_lr` at `total_steps`, and up again after it (CosineAnnealingLR, whose T_max and
/// eta_min these are).
RateFunction CosineAnnealing(int64_t total_steps, double min_lr = 0);

}  // namespace lockstep
