#pragma once

#include <ATen/core/Tensor.h>

#include "lockstep/comm/collectives.h"

namespace lockstep {

// Collectives that backward goes through, as in Python's torch.distributed.nn.functional. Their backward is a
// collective too: every rank must run it, in the same order. With a null group they are the identity, or a stack of
// one.

/// The sum over all ranks. Backward: the gradient's sum over all ranks.
at::Tensor DifferentiableAllReduce(const at::Tensor& input, const ProcessGroupPtr& group);

/// Every rank's tensor, stacked: [world size, …]. Backward: this rank's part of the gradients, summed over all ranks.
at::Tensor DifferentiableAllGather(const at::Tensor& input, const ProcessGroupPtr& group);

}  // namespace lockstep
