#include "lockstep/models/conv_net.h"

#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/pooling.h>

#include "lockstep/nn/batch_norm.h"

namespace lockstep::models {
namespace {

torch::nn::Sequential Block(int64_t in, int64_t out) {
  return torch::nn::Sequential(torch::nn::Conv2d(torch::nn::Conv2dOptions(in, out, 3).stride(2).padding(1)),
                               lockstep::nn::BatchNorm2d(out), torch::nn::ReLU(torch::nn::ReLUOptions().inplace(true)),
                               torch::nn::MaxPool2d(torch::nn::MaxPool2dOptions(2).stride(2)));
}

}  // namespace

ConvNetImpl::ConvNetImpl()
    : layer1(register_module("layer1", Block(1, 32))),
      layer2(register_module("layer2", Block(32, 64))),
      fc(register_module("fc", torch::nn::Sequential(torch::nn::Flatten(), torch::nn::Linear(64 * 2 * 2, 128),
                                                     torch::nn::ReLU(), torch::nn::Linear(128, 10)))) {}

at::Tensor ConvNetImpl::forward(const at::Tensor& images) {
  return fc->forward(layer2->forward(layer1->forward(images)));
}

}  // namespace lockstep::models
