#pragma once

#include <ATen/core/Tensor.h>
#include <torch/optim/optimizer.h>

#include <string>
#include <vector>

#include "lockstep/ddp/distributed_data_parallel_base.h"

namespace lockstep {

/// Runs backward and looks at every number on the way. When one is not a number (or, if `infinite_is_anomaly`, a
/// gradient is infinite) it throws, on every rank of `ddp`, and names the autograd node that first gave it and the
/// first parameter, in the order in which backward makes gradients ready, whose gradient has one. Slow: it keeps the
/// graph, runs backward once more to find the parameter, and asks all ranks after each backward.
///
/// A model with collectives of its own in backward, such as synchronised batch norm, can't be left in the middle: there
/// the node is named, the parameter is not, and the other ranks learn of it when this one is gone.
class AnomalyDetector {
 public:
  /// `ddp` may be null; it and the optimizer's parameters outlive this.
  AnomalyDetector(torch::optim::Optimizer& optimizer, bool infinite_is_anomaly, DistributedDataParallelBase* ddp);
  ~AnomalyDetector();
  AnomalyDetector(const AnomalyDetector&) = delete;
  AnomalyDetector& operator=(const AnomalyDetector&) = delete;

  /// Collective with a `ddp` that has a group.
  void Backward(const at::Tensor& loss);

 private:
  DistributedDataParallelBase* const ddp_;
  std::vector<at::Tensor> parameters_;
  std::vector<unsigned> hooks_;
  std::string first_bad_;  // parameter of this backward, as its hook has found it
};

}  // namespace lockstep
