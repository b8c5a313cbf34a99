#pragma once

#include <ATen/Functions.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/linear.h>
#include <torch/utils.h>

namespace lockstep {

/// A small net with buffers, those of its batch norm.
struct NetImpl : torch::nn::Module {
  NetImpl()
      : a(register_module("a", torch::nn::Linear(6, 16))),
        norm(register_module("norm", torch::nn::BatchNorm1d(16))),
        b(register_module("b", torch::nn::Linear(16, 3))) {}
  at::Tensor forward(const at::Tensor& x) { return b->forward(at::relu(norm->forward(a->forward(x)))); }
  torch::nn::Linear a;
  torch::nn::BatchNorm1d norm;
  torch::nn::Linear b;
};
TORCH_MODULE(Net);

/// The same in every process.
inline Net MakeNet() {
  torch::manual_seed(1);
  return Net();
}

}  // namespace lockstep
