#pragma once

#include <ATen/core/Tensor.h>

#include "lockstep/comm/collectives.h"

namespace lockstep::nn::internal {

/// Batch norm of `input` (N, C, …) with mean and variance over all ranks' batches, which may differ in N or be empty;
/// one that doesn't count is normalised like the others and otherwise as if it were empty.
/// `weight`, `bias`, `running_mean` and `running_var` may be undefined; the running ones are updated in place with
/// `momentum`. Forward costs one all-gather of 2C + 1 numbers, backward one all-reduce of 2C. Every rank must take
/// part in both. The gradients of weight and bias are this rank's own, as everywhere in data-parallel training.
at::Tensor SyncBatchNorm(const at::Tensor& input, bool counts, const at::Tensor& weight, const at::Tensor& bias,
                         const at::Tensor& running_mean, const at::Tensor& running_var, double momentum, double eps,
                         const ProcessGroupPtr& group);

}  // namespace lockstep::nn::internal
