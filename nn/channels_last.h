#pragma once

#include <torch/nn/module.h>

namespace lockstep::nn {

/// Lays every 4-dimensional parameter and buffer out channels-last, in place and also where a dimension is 1
/// (`contiguous` leaves those as they are, and then convolutions fall back to the slow layout). On CPUs this makes
/// convolutions about twice as fast; the activations follow the weights.
void ToChannelsLast(torch::nn::Module& module);

}  // namespace lockstep::nn
