#pragma once

#include "lockstep/metrics/metric_sums.h"
#include "lockstep/trainer/step.h"
#include "lockstep/trainer/strategy.h"

namespace lockstep {

/// Adds the loss and the sums of a batch, where the strategy counts those of this rank.
void CountOutput(const StepOutput& output, const Strategy& strategy, MetricSums& sums);

}  // namespace lockstep
