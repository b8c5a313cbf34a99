#pragma once

#include <map>
#include <string>

#include "lockstep/amp/internal/unscale.h"
#include "lockstep/amp/loss_scaler.h"

namespace lockstep {

/// One scale for the whole training, chosen by hand. Gradients are not looked at: every step is taken, and a gradient
/// that is not finite spoils the parameters, as without a scaler.
class StaticScaler : public LossScaler {
 public:
  /// Throws c10::Error unless the scale is finite and over 0, also as a float.
  explicit StaticScaler(double scale);

  /// Throws when called twice since the last Update, and for half-precision gradients.
  void Unscale(torch::optim::Optimizer& optimizer) override;
  /// Throws when called twice since the last Update, for half-precision gradients, and for an optimizer with a closure.
  bool Step(torch::optim::Optimizer& optimizer, torch::optim::Optimizer::LossClosure closure = nullptr) override;
  void Update() override;

  double scale() const override { return scale_; }
  bool dynamic() const override { return false; }
  /// There is none: the scale is an option. Any state is taken and forgotten, as by NoScaler.
  std::map<std::string, double> state() const override { return {}; }
  absl::Status set_state(const std::map<std::string, double>&) override { return absl::OkStatus(); }

 protected:
  at::Tensor ScaleLoss(const at::Tensor& loss) override;

 private:
  const double scale_;
  std::map<const torch::optim::Optimizer*, internal::Stage> stages_;
};

}  // namespace lockstep
