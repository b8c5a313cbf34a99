#include "lockstep/trainer/count_output.h"

#include <ATen/core/Tensor.h>
#include <ATen/TensorOperators.h>

namespace lockstep {

void CountOutput(const StepOutput& output, const Strategy& strategy, MetricSums& sums) {
  if (!strategy.counts()) return;
  sums.Add("loss", output.loss.detach().to(at::kDouble) * output.samples);
  for (const auto& [name, sum] : output.sums) sums.Add(name, sum);
  sums.AddSamples(output.samples);
}

}  // namespace lockstep
