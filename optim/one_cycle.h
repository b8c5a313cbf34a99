#pragma once

#include <torch/optim/optimizer.h>

#include <cstdint>
#include <vector>

#include "lockstep/optim/lambda_schedule.h"

namespace lockstep {

/// The names and defaults are those of Python's OneCycleLR.
struct OneCycleOptions {
  enum class Anneal { kCos, kLinear };

  int64_t total_steps = 0;     ///< At least 1.
  std::vector<double> max_lr;  ///< One for all parameter groups, or one for each; none: the rates that they have.
  double pct_start = 0.3;      ///< The part of the cycle in which the rate rises, from 0 to 1.
  Anneal anneal = Anneal::kCos;
  /// Whether momentum (SGD, RMSprop) or beta1 (Adam, AdamW) goes down while the rate goes up, and back.
  bool cycle_momentum = true;
  double base_momentum = 0.85;
  double max_momentum = 0.95;
  double div_factor = 25;         ///< The first rate is max_lr / div_factor.
  double final_div_factor = 1e4;  ///< The last rate is the first one divided by this.
  bool three_phase = false;       ///< Back to the first rate as fast as it rose, and then to the last one.
};

/// One cycle of the learning rate, up and far down, and of momentum, down and up (Smith and Topin, arXiv:1708.07120),
/// as Python's OneCycleLR. A step beyond `total_steps` throws c10::Error.
class OneCycle : public LambdaSchedule {
 public:
  /// Throws c10::Error for options that make no sense, and for cycle_momentum with an optimizer that has none.
  OneCycle(torch::optim::Optimizer& optimizer, OneCycleOptions options);

  absl::Status LoadState(const Value& state) override;

 protected:
  std::vector<double> get_lrs() override;

 private:
  const OneCycleOptions options_;
};

}  // namespace lockstep
