#pragma once

#include <map>
#include <set>
#include <string>

#include "lockstep/amp/loss_scaler.h"

namespace lockstep {

/// One scale for the whole training, chosen by hand. Gradients are not looked at: every step is taken, and a gradient
/// that is not finite spoils the parameters, as without a scaler.
class StaticScaler : public LossScaler {
 public:
  /// Throws c10::Error unless the scale is finite and over 0.
  explicit StaticScaler(double scale);

  using LossScaler::Scale;
  at::Tensor Scale(const at::Tensor& loss) override;
  /// Throws when called twice since the last Update, and for half-precision gradients.
  void Unscale(torch::optim::Optimizer& optimizer) override;
  /// Throws when called twice since the last Update, for half-precision gradients, and for an optimizer with a closure.
  bool Step(torch::optim::Optimizer& optimizer, torch::optim::Optimizer::LossClosure closure = nullptr) override;
  void Update() override;

  double scale() const override { return scale_; }
  bool dynamic() const override { return false; }
  /// {"scale": …}
  std::map<std::string, double> state() const override { return {{"scale", scale_}}; }
  absl::Status set_state(const std::map<std::string, double>& state) override;

 private:
  double scale_;
  std::set<const torch::optim::Optimizer*> unscaled_, stepped_;  // since the last Update
};

}  // namespace lockstep
