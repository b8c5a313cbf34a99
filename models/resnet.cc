#include "lockstep/models/resnet.h"

#include <ATen/Functions.h>
#include <absl/status/status.h>
#include <absl/strings/str_cat.h>
#include <torch/nn/init.h>

#include <map>

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

// The convolutions draw their first numbers in torchvision's order, the shortcut's first.
BasicBlockImpl::BasicBlockImpl(int64_t in_channels, int64_t channels, int64_t stride)
    : downsample(Downsample(in_channels, channels, stride)),
      conv1(Conv(in_channels, channels, 3, stride)),
      conv2(Conv(channels, channels, 3, 1)),
      bn1(channels),
      bn2(channels) {
  register_module("conv1", conv1);
  register_module("bn1", bn1);
  register_module("conv2", conv2);
  register_module("bn2", bn2);
  if (downsample) register_module("downsample", downsample);
}

at::Tensor BasicBlockImpl::forward(const at::Tensor& input) {
  const at::Tensor out = bn2(conv2(at::relu(bn1(conv1(input)))));
  return at::relu(out + (downsample ? downsample->forward(input) : input));
}

BottleneckImpl::BottleneckImpl(int64_t in_channels, int64_t channels, int64_t stride)
    : downsample(Downsample(in_channels, channels * kExpansion, stride)),
      conv1(Conv(in_channels, channels, 1, 1)),
      conv2(Conv(channels, channels, 3, stride)),
      conv3(Conv(channels, channels * kExpansion, 1, 1)),
      bn1(channels),
      bn2(channels),
      bn3(channels * kExpansion) {
  register_module("conv1", conv1);
  register_module("bn1", bn1);
  register_module("conv2", conv2);
  register_module("bn2", bn2);
  register_module("conv3", conv3);
  register_module("bn3", bn3);
  if (downsample) register_module("downsample", downsample);
}

at::Tensor BottleneckImpl::forward(const at::Tensor& input) {
  const at::Tensor out = bn3(conv3(at::relu(bn2(conv2(at::relu(bn1(conv1(input))))))));
  return at::relu(out + (downsample ? downsample->forward(input) : input));
}

ResNetImpl::ResNetImpl(const std::vector<int>& blocks, Block kind, const ResNetOptions& options)
    : conv1(
          register_module("conv1", torch::nn::Conv2d(options.small_images() ? Conv(3, 64, 3, 1) : Conv(3, 64, 7, 2)))),
      bn1(register_module("bn1", nn::BatchNorm2d(64))),
      fc(nullptr),
      small_images_(options.small_images()) {
  TORCH_CHECK(blocks.size() == 4, "ResNet: expected the number of blocks of four layers, got ", blocks.size());
  TORCH_CHECK(options.num_classes() > 0, "ResNet: num_classes must be at least 1, got ", options.num_classes());
  const int64_t wider = kind == Block::kBottleneck ? kExpansion : 1;
  layer1 = register_module("layer1", MakeLayer(64, 64, blocks[0], 1, kind));
  layer2 = register_module("layer2", MakeLayer(64 * wider, 128, blocks[1], 2, kind));
  layer3 = register_module("layer3", MakeLayer(128 * wider, 256, blocks[2], 2, kind));
  layer4 = register_module("layer4", MakeLayer(256 * wider, 512, blocks[3], 2, kind));
  fc = register_module("fc", torch::nn::Linear(512 * wider, options.num_classes()));
  for (const auto& module : modules(/*include_self=*/false)) {
    if (auto* conv = module->as<torch::nn::Conv2dImpl>()) {
      torch::nn::init::kaiming_normal_(conv->weight, 0, torch::kFanOut, torch::kReLU);
    }
    if (!options.zero_init_residual()) continue;
    if (auto* block = module->as<BasicBlockImpl>()) torch::nn::init::zeros_(block->bn2->weight);
    if (auto* block = module->as<BottleneckImpl>()) torch::nn::init::zeros_(block->bn3->weight);
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
  at::Tensor x = at::relu(bn1(conv1(images)));
  if (!small_images_) x = at::max_pool2d(x, 3, 2, 1);
  x = layer4->forward(layer3->forward(layer2->forward(layer1->forward(x))));
  return fc(at::adaptive_avg_pool2d(x, {1, 1}).flatten(1));
}

namespace {

using Maker = ResNet (*)(const ResNetOptions&);
const std::map<std::string, Maker>& Makers() {
  static const auto& makers = *new std::map<std::string, Maker>{{"resnet18", ResNet18},
                                                                {"resnet34", ResNet34},
                                                                {"resnet50", ResNet50},
                                                                {"resnet101", ResNet101},
                                                                {"resnet152", ResNet152}};
  return makers;
}

}  // namespace

ResNet ResNet18(const ResNetOptions& options) {
  return ResNet(std::vector<int>{2, 2, 2, 2}, ResNetImpl::Block::kBasic, options);
}

ResNet ResNet34(const ResNetOptions& options) {
  return ResNet(std::vector<int>{3, 4, 6, 3}, ResNetImpl::Block::kBasic, options);
}

ResNet ResNet50(const ResNetOptions& options) {
  return ResNet(std::vector<int>{3, 4, 6, 3}, ResNetImpl::Block::kBottleneck, options);
}

ResNet ResNet101(const ResNetOptions& options) {
  return ResNet(std::vector<int>{3, 4, 23, 3}, ResNetImpl::Block::kBottleneck, options);
}

ResNet ResNet152(const ResNetOptions& options) {
  return ResNet(std::vector<int>{3, 8, 36, 3}, ResNetImpl::Block::kBottleneck, options);
}

absl::Status CheckResNetName(const std::string& name) {
  return Makers().count(name) > 0
             ? absl::OkStatus()
             : absl::InvalidArgumentError(absl::StrCat(
                   "no such model: '", name, "'; there are resnet18, resnet34, resnet50, resnet101 and resnet152"));
}

absl::StatusOr<ResNet> MakeResNet(const std::string& name, const ResNetOptions& options) {
  const absl::Status known = CheckResNetName(name);
  if (!known.ok()) return known;
  return Makers().at(name)(options);
}

}  // namespace lockstep::models
