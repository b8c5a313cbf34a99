#pragma once

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>

#include <cstdint>
#include <vector>

#include "lockstep/checkpoint/stateful.h"
#include "lockstep/trainer/observer.h"

namespace lockstep {

/// An exponential moving average of a module's parameters, as `torch.optim.swa_utils.AveragedModel` with
/// `get_ema_multi_avg_fn(decay)`: after each step average = decay · average + (1 − decay) · parameter, the first step's
/// is a copy. Validations, tests and the best state see the average in the module's place; training goes on with the
/// module's own. Buffers are the module's. Give it to the trainer as an observer and, to resume, among
/// TrainingParts::others. A run that goes on from the best state goes on from the average.
class WeightAverage : public TrainObserver, public Stateful {
 public:
  /// `module` outlives it. Throws c10::Error unless 0 <= decay < 1.
  WeightAverage(torch::nn::Module& module, double decay);

  void OnStepEnd(StepInfo& info) override;
  void OnValidationStart() override { Exchange(true); }
  void OnValidationEnd() override { Exchange(false); }

  Value SaveState() override;
  absl::Status LoadState(const Value& state) override;

 private:
  /// Puts the averages into the module, or its own parameters back.
  void Exchange(bool averages_in);

  const std::vector<at::Tensor> parameters_;
  const double decay_;
  int64_t steps_ = 0;
  bool averages_in_ = false;
  std::vector<at::Tensor> others_;  // the averages, or, while they are in the module, its own parameters
};

}  // namespace lockstep
