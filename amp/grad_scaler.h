#pragma once

#include <map>
#include <string>
#include <unordered_map>

#include "lockstep/amp/internal/unscale.h"
#include "lockstep/amp/loss_scaler.h"
#include "lockstep/comm/collectives.h"

namespace lockstep {

struct GradScalerOptions {
  double init_scale = 65536;
  double growth_factor = 2;
  double backoff_factor = 0.5;
  int64_t growth_interval = 2000;
  bool enabled = true;
  /// An overflow on one rank of the group skips the step on all, whether or not gradients are averaged, so that scales
  /// never drift apart. Step is then collective, and so is an Update of what was unscaled but not stepped. Null: this
  /// process alone.
  ProcessGroupPtr group;
};

/// Dynamic loss scaling, with the numbers of Python's `torch.amp.GradScaler` (Micikevicius et al., arXiv:1710.03740):
/// a step with an infinite or NaN gradient is skipped and the scale multiplied by `backoff_factor`; after
/// `growth_interval` good steps in a row it is multiplied by `growth_factor`. Any number of losses, optimizers and
/// devices; one Update for all. Step waits for the device, once, and Update when a step was skipped. An optimizer
/// without any gradient is stepped, so that a rank which has none follows the others. After an exception between Scale
/// and Update, `Update(scale())` forgets what was begun. Not thread-safe.
class GradScaler : public LossScaler {
 public:
  /// Throws c10::Error for options out of range: the initial scale must be over 0 and finite, growth over 1, backoff
  /// between 0 and 1, the interval at least 1.
  explicit GradScaler(GradScalerOptions options = {});
  GradScaler(const GradScaler&) = delete;
  GradScaler& operator=(const GradScaler&) = delete;

  /// Throws when called twice since the last Update, or after Step, before any Scale (unless there is a group: then
  /// others may have losses), or for half-precision gradients.
  void Unscale(torch::optim::Optimizer& optimizer) override;
  void AddFoundInf(torch::optim::Optimizer& optimizer, const at::Tensor& found_inf) override;
  /// Throws when called twice since the last Update, as Unscale, and for an optimizer with a closure.
  bool Step(torch::optim::Optimizer& optimizer, torch::optim::Optimizer::LossClosure closure = nullptr) override;
  /// Throws when no Unscale or Step came before it. Warns, once, of a scale that has become very small.
  void Update() override;
  /// Sets the scale instead; what was unscaled is forgotten. Throws unless it is over 0 and finite.
  void Update(double new_scale);
  /// The same from a tensor with one element, without waiting for its device and so without looking at the value.
  void Update(const at::Tensor& new_scale);

  double scale() const override;
  bool dynamic() const override { return options_.enabled; }
  ProcessGroupPtr group() const override { return options_.group; }
  const GradScalerOptions& options() const { return options_; }
  /// Throw as the constructor does; in force from the next Update on.
  void set_growth_factor(double factor);
  void set_backoff_factor(double factor);
  void set_growth_interval(int64_t interval);

  /// Keys of Python's state_dict: scale, growth_factor, backoff_factor, growth_interval, _growth_tracker. Nothing when
  /// not enabled.
  std::map<std::string, double> state() const override;
  /// InvalidArgument also for keys that are missing or not known, as in a state of another version.
  absl::Status set_state(const std::map<std::string, double>& state) override;

 protected:
  at::Tensor ScaleLoss(const at::Tensor& loss) override;

 private:
  struct PerOptimizer {
    internal::Stage stage = internal::Stage::kReady;
    at::Tensor found_inf;  // float scalar, more than 0 if any gradient was not finite
    bool agreed = false;   // it is that of all ranks
  };

  void Initialize(const at::Device& device);
  PerOptimizer& UnscaleOnce(torch::optim::Optimizer& optimizer);
  void WarnOfSmallScale();

  GradScalerOptions options_;
  double init_scale_;
  int32_t init_growth_tracker_ = 0;
  at::Tensor scale_;           // float scalar on the losses' device; undefined until first used
  at::Tensor growth_tracker_;  // int32 scalar: good steps in a row
  std::unordered_map<torch::optim::Optimizer*, PerOptimizer> optimizers_;
  bool skipped_ = false;  // since the last Update
  bool warned_ = false;
};

}  // namespace lockstep
