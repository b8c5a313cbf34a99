#pragma once

#include <torch/optim/optimizer.h>

#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "lockstep/ddp/reducer.h"

namespace lockstep {

/// Makes an optimizer over the parameters that it is given, which may be any part of the model's that need a gradient:
/// a server's share, or all. It may put them into groups by name, but each into the same one whatever else is there.
using OptimizerFactory =
    std::function<std::unique_ptr<torch::optim::Optimizer>(const std::vector<NamedParameter>& parameters)>;

/// Of one of LibTorch's optimizers, all parameters in one group:
/// `MakesOptimizer<torch::optim::SGD>(torch::optim::SGDOptions(0.1).momentum(0.9))`.
template <typename Inner, typename Options>
OptimizerFactory MakesOptimizer(Options options) {
  return [options = std::move(options)](const std::vector<NamedParameter>& parameters) {
    std::vector<at::Tensor> tensors;
    for (const auto& named : parameters) tensors.push_back(named.parameter);
    return std::make_unique<Inner>(std::move(tensors), options);
  };
}

}  // namespace lockstep
