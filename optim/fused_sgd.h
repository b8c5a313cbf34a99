#pragma once

#include <torch/optim/sgd.h>

namespace lockstep {

/// `torch::optim::SGD` whose step goes over each number once, in LibTorch's fused kernel, as Python's
/// `torch.optim.SGD(fused=True)`: less than half the time on a CPU. State, options and results are SGD's (results to
/// rounding). Where the kernel can't serve (sparse gradients, a gradient laid out otherwise than its parameter) SGD's
/// own step is taken.
class FusedSGD : public torch::optim::SGD {
 public:
  using torch::optim::SGD::SGD;

  at::Tensor step(LossClosure closure = nullptr) override;

 private:
  bool Fits(const at::Tensor& parameter);
};

}  // namespace lockstep
