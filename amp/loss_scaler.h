#pragma once

#include <absl/status/status.h>
#include <ATen/core/Tensor.h>
#include <torch/optim/optimizer.h>

#include <map>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "lockstep/comm/collectives.h"

namespace lockstep {

/// Scales a loss so that small half-precision gradients don't vanish, and takes the scale out again before the
/// optimizer's step. A step is: Scale(loss).backward(), Step(optimizer), Update().
class LossScaler {
 public:
  virtual ~LossScaler() = default;

  /// The loss to call backward on.
  at::Tensor Scale(const at::Tensor& loss) { return ScaleLoss(loss); }
  /// The same of several losses: vectors, pairs and tuples of tensors, nested at will.
  template <typename T>
  std::vector<T> Scale(const std::vector<T>& losses) {
    std::vector<T> scaled;
    for (const T& loss : losses) scaled.push_back(Scale(loss));
    return scaled;
  }
  template <typename... T>
  std::tuple<T...> Scale(const std::tuple<T...>& losses) {
    return std::apply([this](const T&... loss) { return std::tuple<T...>{Scale(loss)...}; }, losses);
  }
  template <typename A, typename B>
  std::pair<A, B> Scale(const std::pair<A, B>& losses) {
    return {Scale(losses.first), Scale(losses.second)};
  }

  /// Takes the scale out of the gradients now, as before clipping; Step does so itself otherwise. Afterwards the
  /// gradients of the optimizer's parameters are what it will step with, those of master weights too.
  virtual void Unscale(torch::optim::Optimizer& optimizer) = 0;
  /// After Unscale: one number that is more than 0 counts as a gradient that is not finite, as a norm of all gradients
  /// may be although each is finite.
  virtual void AddFoundInf(torch::optim::Optimizer& optimizer, const at::Tensor& found_inf) {}
  /// Steps the optimizer; returns whether it stepped. A dynamic scaler doesn't when a gradient is infinite or not a
  /// number. Scalers that scale refuse a closure, which would make gradients behind their back.
  virtual bool Step(torch::optim::Optimizer& optimizer, torch::optim::Optimizer::LossClosure closure = nullptr) = 0;
  /// Adapts the scale; once per iteration, after Step.
  virtual void Update() = 0;

  /// The factor now in force, 1 without scaling. Waits for the device.
  virtual double scale() const = 0;
  /// Whether Step may skip steps by design.
  virtual bool dynamic() const = 0;
  /// The ranks that skip together; null: this process decides alone.
  virtual ProcessGroupPtr group() const { return nullptr; }

  /// Named numbers, as `state_dict()` in Python; empty where there is nothing to keep.
  virtual std::map<std::string, double> state() const = 0;
  /// InvalidArgument, and nothing is changed, when the state is none of this kind of scaler.
  virtual absl::Status set_state(const std::map<std::string, double>& state) = 0;

 protected:
  virtual at::Tensor ScaleLoss(const at::Tensor& loss) = 0;
};

}  // namespace lockstep
