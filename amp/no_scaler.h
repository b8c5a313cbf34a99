#pragma once

#include <map>
#include <string>
#include <utility>

#include "lockstep/amp/loss_scaler.h"
#include "lockstep/amp/master_weights.h"

namespace lockstep {

/// Scales nothing, as in float32 and bfloat16. It takes any state and forgets it, so that a run that had a scaler can
/// go on without.
class NoScaler : public LossScaler {
 public:
  void Unscale(torch::optim::Optimizer& optimizer) override {
    if (auto* master = MasterWeights::Of(optimizer)) master->TakeGradients();
  }
  bool Step(torch::optim::Optimizer& optimizer, torch::optim::Optimizer::LossClosure closure = nullptr) override {
    optimizer.step(std::move(closure));
    return true;
  }
  void Update() override {}
  double scale() const override { return 1; }
  bool dynamic() const override { return false; }
  std::map<std::string, double> state() const override { return {}; }
  absl::Status set_state(const std::map<std::string, double>&) override { return absl::OkStatus(); }

 protected:
  at::Tensor ScaleLoss(const at::Tensor& loss) override { return loss; }
};

}  // namespace lockstep
