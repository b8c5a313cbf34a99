#pragma once

#include <ATen/core/Tensor.h>
#include <torch/data/example.h>

#include <vector>

#include "lockstep/data/tensor_batch.h"

namespace lockstep {

/// Samples of one shape, stacked: data (N, …), target (N, …). Throws for shapes that differ, naming both.
TensorBatch StackSamples(std::vector<torch::data::Example<>> samples);

/// Samples of varying length in their first dimension, each padded at its end with `padding` to the longest of the
/// batch: data (N, L, …). The targets are stacked, or padded likewise with `target_padding` when they vary too.
TensorBatch PadSamples(std::vector<torch::data::Example<>> samples, double padding = 0, double target_padding = -100);

}  // namespace lockstep
