#pragma once

#include <unordered_map>

#include "lockstep/amp/loss_scaler.h"
#include "lockstep/comm/collectives.h"

namespace lockstep {

struct GradScalerOptions {
  double init_scale = 65536;
  double growth_factor = 2;
  double backoff_factor = 0.5;
  int64_t growth_interval = 2000;
  bool enabled = true;
  /// An overflow on one rank of the group skips the step on all, so that scales never drift apart. Unscale, or Step
  /// where there was no Unscale, is then collective. Null: this process alone.
  ProcessGroupPtr group;
};

/// Dynamic loss scaling, with the numbers of Python's `torch.amp.GradScaler` (Micikevicius et al., arXiv:1710.03740):
/// a step with an infinite or NaN gradient is skipped and the scale multiplied by `backoff_factor`; after
/// `growth_interval` good steps in a row it is multiplied by `growth_factor`. Not thread-safe.
class GradScaler : public LossScaler {
 public:
  /// Throws c10::Error for factors out of range: growth must be over 1, backoff below 1, interval at least 1.
  explicit GradScaler(GradScalerOptions options = {});

  at::Tensor Scale(const at::Tensor& loss) override;
  /// Throws when called twice since the last Update, or after Step, or for half-precision gradients.
  void Unscale(torch::optim::Optimizer& optimizer) override;
  /// Throws when called twice since the last Update.
  bool Step(torch::optim::Optimizer& optimizer) override;
  /// Throws when no Unscale or Step came before it.
  void Update() override;
  /// Sets the scale; what was unscaled is forgotten.
  void Update(double new_scale);

  double scale() const override;
  bool dynamic() const override { return options_.enabled; }
  /// Keys of Python's state_dict: scale, growth_factor, backoff_factor, growth_interval, _growth_tracker.
  std::map<std::string, double> state() const override;
  absl::Status set_state(const std::map<std::string, double>& state) override;

 private:
  enum class Stage { kReady, kUnscaled, kStepped };
  struct PerOptimizer {
    Stage stage = Stage::kReady;
    at::Tensor found_inf;  // float scalar, more than 0 if any gradient was not finite
  };

  void Initialize(const at::Device& device);
  PerOptimizer& UnscaleOnce(torch::optim::Optimizer& optimizer);

  GradScalerOptions options_;
  double init_scale_;
  int32_t init_growth_tracker_ = 0;
  at::Tensor scale_;           // float scalar on the losses' device; undefined until first used
  at::Tensor growth_tracker_;  // int32 scalar: good steps in a row
  std::unordered_map<torch::optim::Optimizer*, PerOptimizer> optimizers_;
};

}  // namespace lockstep
