#pragma once

#include <absl/status/status.h>
#include <ATen/core/Tensor.h>
#include <torch/optim/optimizer.h>

#include <map>
#include <string>

namespace lockstep {

/// Scales a loss so that small half-precision gradients don't vanish, and takes the scale out again before the
/// optimizer's step. A step is: Scale(loss).backward(), Step(optimizer), Update().
class LossScaler {
 public:
  virtual ~LossScaler() = default;
  /// The loss to call backward on.
  virtual at::Tensor Scale(const at::Tensor& loss) = 0;
  /// Takes the scale out of the gradients now, as before clipping; Step does so itself otherwise.
  virtual void Unscale(torch::optim::Optimizer& optimizer) = 0;
  /// Steps the optimizer unless a gradient is infinite or not a number; returns whether it stepped.
  virtual bool Step(torch::optim::Optimizer& optimizer) = 0;
  /// Adapts the scale; once per iteration, after Step.
  virtual void Update() = 0;
  /// The factor now in force, 1 without scaling.
  virtual double scale() const = 0;
  /// Whether Step may skip steps by design.
  virtual bool dynamic() const = 0;
  /// Named numbers, as `state_dict()` in Python; empty where there is nothing to keep.
  virtual std::map<std::string, double> state() const = 0;
  /// InvalidArgument, and nothing is changed, when the state is none of this kind of scaler.
  virtual absl::Status set_state(const std::map<std::string, double>& state) = 0;
};

/// Scales nothing.
class NoScaler : public LossScaler {
 public:
  at::Tensor Scale(const at::Tensor& loss) override { return loss; }
  void Unscale(torch::optim::Optimizer&) override {}
  bool Step(torch::optim::Optimizer& optimizer) override {
    optimizer.step();
    return true;
  }
  void Update() override {}
  double scale() const override { return 1; }
  bool dynamic() const override { return false; }
  std::map<std::string, double> state() const override { return {}; }
  absl::Status set_state(const std::map<std::string, double>&) override { return absl::OkStatus(); }
};

}  // namespace lockstep
