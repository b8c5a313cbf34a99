#include "lockstep/optim/decay_schedules.h"

#include <c10/util/Exception.h>
#include <c10/util/MathConstants.h>

#include <algorithm>
#include <cmath>
#include <utility>

namespace lockstep {
namespace {

void CheckPositive(const char* name, int64_t steps) {
  TORCH_CHECK(steps >= 1, name, " must be at least 1, is ", steps);
}

void CheckNotNegative(const char* name, double number) {
  TORCH_CHECK(std::isfinite(number) && number >= 0, name, " must be a finite number from 0 on, is ", number);
}

}  // namespace

RateFunction StepDecay(int64_t step_size, double gamma) {
  CheckPositive("step_size", step_size);
  CheckNotNegative("gamma", gamma);
  return [=](int64_t step, double base_rate) {
    return base_rate * std::pow(gamma, static_cast<double>(step / step_size));
  };
}

RateFunction MultiStepDecay(std::vector<int64_t> milestones, double gamma) {
  CheckNotNegative("gamma", gamma);
  for (const int64_t milestone : milestones) CheckPositive("a milestone", milestone);
  std::sort(milestones.begin(), milestones.end());
  return [=, milestones = std::move(milestones)](int64_t step, double base_rate) {
    const auto passed = std::upper_bound(milestones.begin(), milestones.end(), step) - milestones.begin();
    return base_rate * std::pow(gamma, static_cast<double>(passed));
  };
}

RateFunction ExponentialDecay(double gamma) { return StepDecay(1, gamma); }

RateFunction PolynomialDecay(int64_t total_steps, double power) {
  CheckPositive("total_steps", total_steps);
  CheckNotNegative("power", power);
  return [=](int64_t step, double base_rate) {
    const double progress = static_cast<double>(std::min(step, total_steps)) / static_cast<double>(total_steps);
    return base_rate * std::pow(1 - progress, power);
  };
}

RateFunction CosineAnnealing(int64_t total_steps, double min_lr) {
  CheckPositive("total_steps", total_steps);
  CheckNotNegative("min_lr", min_lr);
  return [=](int64_t step, double base_rate) {
    const double phase = c10::pi<double> * static_cast<double>(step) / static_cast<double>(total_steps);
    return min_lr + (base_rate - min_lr) * (1 + std::cos(phase)) / 2;
  };
}

}  // namespace lockstep
