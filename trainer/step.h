#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <map>
#include <string>

namespace lockstep {

/// What a module made of one batch.
struct StepOutput {
  at::Tensor loss;                           ///< Mean over the batch, a scalar; backward is called on it in training.
  int64_t samples = 0;                       ///< In the batch.
  std::map<std::string, at::Tensor> sums{};  ///< Metrics, each summed over the batch, such as "accuracy": hits.
  bool went_backward = false;  ///< The step has left gradients itself, as Pipeline::Step does; not with a loss scale.
};

/// Runs the module on a batch, under the trainer's autocast. `Batch` is whatever the BatchSource gives.
template <typename Batch>
using TrainStep = std::function<StepOutput(Batch& batch)>;

/// The same without gradients and with the module in evaluation mode.
template <typename Batch>
using EvalStep = std::function<StepOutput(Batch& batch)>;

}  // namespace lockstep
