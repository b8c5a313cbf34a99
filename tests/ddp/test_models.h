#pragma once

#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/rnn.h>

// Small models, each with something that a reducer must get right.

namespace lockstep::test_models {

struct MlpImpl : torch::nn::Module {
  explicit MlpImpl(int64_t in = 6, int64_t hidden = 16, int64_t out = 3)
      : a(register_module("a", torch::nn::Linear(in, hidden))),
        b(register_module("b", torch::nn::Linear(hidden, out))) {}
  at::Tensor forward(const at::Tensor& x) { return b->forward(at::relu(a->forward(x))); }
  torch::nn::Linear a, b;
};
TORCH_MODULE(Mlp);

/// A branch for each kind of input; `never` is not used at all.
struct BranchesImpl : torch::nn::Module {
  BranchesImpl()
      : stem(register_module("stem", torch::nn::Linear(6, 8))),
        left(register_module("left", torch::nn::Linear(8, 3))),
        right(register_module("right", torch::nn::Linear(8, 3))),
        never(register_module("never", torch::nn::Linear(8, 3))) {}
  at::Tensor forward(const at::Tensor& x, bool to_left = true) {
    const at::Tensor h = at::tanh(stem->forward(x));
    return to_left ? left->forward(h) : right->forward(h);
  }
  torch::nn::Linear stem, left, right, never;
};
TORCH_MODULE(Branches);

/// One weight used twice, as embeddings are that are tied to the output.
struct SharedImpl : torch::nn::Module {
  SharedImpl() : a(register_module("a", torch::nn::Linear(6, 6))), b(register_module("b", torch::nn::Linear(6, 3))) {
    again = register_parameter("again", a->weight);
  }
  at::Tensor forward(const at::Tensor& x) {
    return b->forward(at::tanh(at::linear(at::tanh(a->forward(at::tanh(a->forward(x)))), again)));
  }
  torch::nn::Linear a, b;
  at::Tensor again;
};
TORCH_MODULE(Shared);

/// (N, steps · 6) to (N, 3) by a recurrent net.
struct RecurrentImpl : torch::nn::Module {
  RecurrentImpl()
      : lstm(register_module("lstm", torch::nn::LSTM(torch::nn::LSTMOptions(6, 8).num_layers(2).batch_first(true)))),
        out(register_module("out", torch::nn::Linear(8, 3))) {}
  at::Tensor forward(const at::Tensor& x) {
    return out->forward(std::get<0>(lstm->forward(x.view({x.size(0), -1, 6}))).select(1, -1));
  }
  torch::nn::LSTM lstm;
  torch::nn::Linear out;
};
TORCH_MODULE(Recurrent);

}  // namespace lockstep::test_models
