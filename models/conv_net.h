#pragma once

#include <torch/nn/module.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/pimpl.h>

namespace lockstep::models {

/// The MNIST net: two blocks of convolution (3×3, stride 2), batch norm, ReLU and max-pooling, then two linear layers.
/// Input (N, 1, 28, 28), output (N, 10) logits. Parameters are named as in Python: `layer1.0.weight`, `layer1.1.bias`,
/// `layer2.0.weight`, …, `fc.1.weight`, `fc.3.bias`. Its batch norm can be synchronised.
class ConvNetImpl : public torch::nn::Module {
 public:
  ConvNetImpl();
  at::Tensor forward(const at::Tensor& images);

  torch::nn::Sequential layer1, layer2, fc;
};
TORCH_MODULE(ConvNet);

}  // namespace lockstep::models
