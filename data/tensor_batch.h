#pragma once

#include <ATen/core/Tensor.h>

namespace lockstep {

/// Inputs and targets of the samples of one batch, in the sampler's order.
struct TensorBatch {
  at::Tensor data;
  at::Tensor target;
};

}  // namespace lockstep
