#include "lockstep/models/resnet.h"

#include <ATen/Functions.h>
#include <torch/nn/init.h>

namespace lockstep::models {
namespace {

torch::nn::Conv2dOptions Conv(int64_t in, int64_t out, int64_t kernel, int64_t stride) {
  return torch::nn::Conv2dOptions(in, out, kernel).stride(stride).padding(kernel / 2).bias(false);
}

/// Null where the input can be the shortcut as it is.
torch::nn::Sequential Downsample(int64_t in, int64_t out, int64_t stride) {
  if (stride == 1 && in == out) return nullptr;
  return torch::nn::Sequential(torch::nn::Conv2d(Conv(in, out, 1, stride)), nn::BatchNorm2d(out));
}

constexpr int64_t kExpansion = 4;  // of a bottleneck's channels

}  // namespace

BasicBlockImpl::BasicBlockImpl(int64_t in_channels, int64_t channels, int64_t stride)
    : conv1(register_module("conv1", torch::nn::Conv2d(Conv(in_channels, channels, 3, stride)))),
      conv2(nullptr),
      bn1(register_module("bn1", nn::BatchNorm2d(channels))),
      bn2(nullptr) {
  conv2 = register_module("conv2", torch::nn::Conv2d(Conv(channels, channels, 3, 1)));
  bn2 = register_module("bn2", nn::BatchNorm2d(channels));
  downsample = Downsample(in_channels, channels, stride);
  if (downsample) register_module("downsample", downsample);
}

at::Tensor BasicBlockImpl::forward(const at::Tensor& input) {
  const at::Tensor out = bn2(conv2(at::relu(bn1(conv1(input)))));
  return at::relu(out + (downsample ? downsample->forward(input) : input));
}

BottleneckImpl::BottleneckImpl(int64_t in_channels, int64_t channels, int64_t stride)
    : conv1(nullptr), conv2(nullptr), conv3(nullptr), bn1(nullptr), bn2(nullptr), bn3(nullptr) {
  const int64_t out_channels = channels * kExpansion;
  conv1 = register_module("conv1", torch::nn::Conv2d(Conv(in_channels, channels, 1, 1)));
  bn1 = register_module("bn1", nn::BatchNorm2d(channels));
  conv2 = register_module("conv2", torch::nn::Conv2d(Conv(channels, channels, 3, stride)));
  bn2 = register_module("bn2", nn::BatchNorm2d(channels));
  conv3 = register_module("conv3", torch::nn::Conv2d(Conv(channels, out_channels, 1, 1)));
  bn3 = register_module("bn3", nn::BatchNorm2d(out_channels));
  downsample = Downsample(in_channels, out_channels, stride);
  if (downsample) register_module("downsample", downsample);
}

at::Tensor BottleneckImpl::forward(const at::Tensor& input) {
  const at::Tensor out = bn3(conv3(at::relu(bn2(conv2(at::relu(bn1(conv1(input))))))));
  return at::relu(out + (downsample ? downsample->forward(input) : input));
}

ResNetImpl::ResNetImpl(const std::vector<int>& blocks, int64_t num_classes, Block kind)
    : conv1(register_module("conv1", torch::nn::Conv2d(Conv(3, 64, 7, 2)))),
      bn1(register_module("bn1", nn::BatchNorm2d(64))),
      fc(nullptr) {
  TORCH_CHECK(blocks.size() == 4, "ResNet: expected the number of blocks of four layers, got ", blocks.size());
  const int64_t wider = kind == Block::kBottleneck ? kExpansion : 1;
  layer1 = register_module("layer1", MakeLayer(64, 64, blocks[0], 1, kind));
  layer2 = register_module("layer2", MakeLayer(64 * wider, 128, blocks[1], 2, kind));
  layer3 = register_module("layer3", MakeLayer(128 * wider, 256, blocks[2], 2, kind));
  layer4 = register_module("layer4", MakeLayer(256 * wider, 512, blocks[3], 2, kind));
  fc = register_module("fc", torch::nn::Linear(512 * wider, num_classes));
  for (const auto& module : modules(/*include_self=*/false)) {
    if (auto* conv = module->as<torch::nn::Conv2dImpl>()) {
      torch::nn::init::kaiming_normal_(conv->weight, 0, torch::kFanOut, torch::kReLU);
    }
  }
}

torch::nn::Sequential ResNetImpl::MakeLayer(int64_t in_channels, int64_t channels, int blocks, int64_t stride,
                                            Block kind) {
  torch::nn::Sequential layer;
  for (int i = 0; i < blocks; ++i) {
    const int64_t from = i == 0 ? in_channels : channels * (kind == Block::kBottleneck ? kExpansion : 1);
    if (kind == Block::kBottleneck) {
      layer->push_back(Bottleneck(from, channels, i == 0 ? stride : 1));
    } else {
      layer->push_back(BasicBlock(from, channels, i == 0 ? stride : 1));
    }
  }
  return layer;
}

at::Tensor ResNetImpl::forward(const at::Tensor& images) {
  at::Tensor x = at::max_pool2d(at::relu(bn1(conv1(images))), 3, 2, 1);
  x = layer4->forward(layer3->forward(layer2->forward(layer1->forward(x))));
  return fc(at::adaptive_avg_pool2d(x, {1, 1}).flatten(1));
}

ResNet ResNet18(int64_t num_classes) { return ResNet(std::vector<int>{2, 2, 2, 2}, num_classes); }

ResNet ResNet50(int64_t num_classes) {
  return ResNet(std::vector<int>{3, 4, 6, 3}, num_classes, ResNetImpl::Block::kBottleneck);
}

}  // namespace lockstep::models
