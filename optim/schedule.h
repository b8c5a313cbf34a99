#pragma once

#include <torch/optim/schedulers/lr_scheduler.h>

#include <optional>
#include <string>
#include <vector>

#include "lockstep/checkpoint/stateful.h"

namespace lockstep {

/// A schedule of learning rates that counts as Python's do: the rates of step 0 are set when it is made, and each step
/// sets those of the next one. (LibTorch's own are one step late: StepLR(1, 0.1) gives 1, 1, 0.1, and not 1, 0.1,
/// 0.01.) It serves wherever a `torch::optim::LRScheduler` does, the trainer included. After LoadState the optimizer
/// has the rates of the saved step, and those that follow are the ones of a run that did not stop.
///
/// The optimizer outlives it, and gets no more parameter groups.
class Schedule : public torch::optim::LRScheduler, public Stateful {
 public:
  /// Sets the rates of the next step. Kinds that go by a metric throw c10::Error without one; others pay no heed to it.
  virtual void Step(std::optional<double> metric = std::nullopt) { step(); }

  /// The name of the metric that it goes by; empty where it needs none.
  virtual std::string monitor() const { return ""; }

  /// The optimizer's current rates, one for each parameter group.
  std::vector<double> Rates() const { return get_current_lrs(); }

 protected:
  explicit Schedule(torch::optim::Optimizer& optimizer) : LRScheduler(optimizer), optimizer_(optimizer) {}

  torch::optim::Optimizer& optimizer() { return optimizer_; }

  void SetRates(const std::vector<double>& rates) {
    for (size_t i = 0; i < rates.size(); ++i) optimizer_.param_groups().at(i).options().set_lr(rates[i]);
  }

 private:
  torch::optim::Optimizer& optimizer_;
};

}  // namespace lockstep
