#include "lockstep/optim/warmup_schedules.h"

#include <c10/util/Exception.h>
#include <c10/util/MathConstants.h>

#include <algorithm>
#include <cmath>

namespace lockstep {
namespace {

/// `decay` makes a factor of the step, from `warmup_steps` on.
template <typename Decay>
RateFunction WithWarmup(int64_t warmup_steps, Decay decay) {
  TORCH_CHECK(warmup_steps >= 0, "warmup_steps must not be negative, is ", warmup_steps);
  return [=](int64_t step, double base_rate) {
    const double warmup = static_cast<double>(step) / static_cast<double>(std::max<int64_t>(1, warmup_steps));
    return base_rate * (step < warmup_steps ? warmup : decay(step));
  };
}

double StepsAfterWarmup(int64_t warmup_steps, int64_t total_steps) {
  TORCH_CHECK(total_steps >= 0, "total_steps must not be negative, is ", total_steps);
  return static_cast<double>(std::max<int64_t>(1, total_steps - warmup_steps));
}

}  // namespace

RateFunction ConstantWithWarmup(int64_t warmup_steps) {
  return WithWarmup(warmup_steps, [](int64_t) { return 1.0; });
}

RateFunction LinearWithWarmup(int64_t warmup_steps, int64_t total_steps) {
  const double steps = StepsAfterWarmup(warmup_steps, total_steps);
  return WithWarmup(warmup_steps,
                    [=](int64_t step) { return std::max(0.0, static_cast<double>(total_steps - step) / steps); });
}

RateFunction CosineWithWarmup(int64_t warmup_steps, int64_t total_steps, double num_cycles) {
  TORCH_CHECK(std::isfinite(num_cycles), "num_cycles must be a finite number, is ", num_cycles);
  const double steps = StepsAfterWarmup(warmup_steps, total_steps);
  return WithWarmup(warmup_steps, [=](int64_t step) {
    const double progress = static_cast<double>(step - warmup_steps) / steps;
    return std::max(0.0, 0.5 * (1 + std::cos(c10::pi<double> * num_cycles * 2 * progress)));
  });
}

}  // namespace lockstep
