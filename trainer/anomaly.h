#pragma once

#include <ATen/core/Tensor.h>
#include <torch/optim/optimizer.h>

#include "lockstep/ddp/distributed_data_parallel_base.h"

namespace lockstep {

/// loss.backward() that looks at every number on the way. When one is not a number (or, if `infinite_is_anomaly`, a
/// gradient is infinite) it throws, on every rank of `ddp`, and names the autograd node that first gave it and the
/// first parameter, in the order in which backward makes gradients ready, whose gradient has one. Keeps the graph, and
/// runs backward once more to find the parameter. `ddp` may be null.
void BackwardWithAnomalyDetection(const at::Tensor& loss, torch::optim::Optimizer& optimizer, bool infinite_is_anomaly,
                                  DistributedDataParallelBase* ddp);

}  // namespace lockstep
