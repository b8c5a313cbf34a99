#pragma once

#include <torch/nn/module.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/pimpl.h>

#include <vector>

#include "lockstep/nn/batch_norm.h"

namespace lockstep::models {

/// Two 3×3 convolutions and a shortcut, of ResNet-18 and ResNet-34.
class BasicBlockImpl : public torch::nn::Module {
 public:
  BasicBlockImpl(int64_t in_channels, int64_t channels, int64_t stride);
  at::Tensor forward(const at::Tensor& input);

  torch::nn::Conv2d conv1, conv2;
  nn::BatchNorm2d bn1, bn2;
  torch::nn::Sequential downsample{nullptr};  ///< Null where the shortcut is the input itself.
};
TORCH_MODULE(BasicBlock);

/// 1×1, 3×3 and 1×1 convolutions, the last with four times the channels, and a shortcut, of ResNet-50 and deeper ones;
/// the stride is the 3×3 one's, as in torchvision.
class BottleneckImpl : public torch::nn::Module {
 public:
  BottleneckImpl(int64_t in_channels, int64_t channels, int64_t stride);
  at::Tensor forward(const at::Tensor& input);

  torch::nn::Conv2d conv1, conv2, conv3;
  nn::BatchNorm2d bn1, bn2, bn3;
  torch::nn::Sequential downsample{nullptr};  ///< Null where the shortcut is the input itself.
};
TORCH_MODULE(Bottleneck);

/// Residual networks (He et al., arXiv:1512.03385). Input (N, 3, H, W), H and W at least 32; output (N, num_classes)
/// logits. Parameters are named as in torchvision: `conv1.weight`, `layer1.0.bn1.bias`, …, `fc.weight`. The batch norm
/// can be synchronised.
class ResNetImpl : public torch::nn::Module {
 public:
  enum class Block { kBasic, kBottleneck };
  /// `blocks`: how many in each of the four layers; {2, 2, 2, 2} of the basic kind is ResNet-18.
  explicit ResNetImpl(const std::vector<int>& blocks, int64_t num_classes = 1000, Block kind = Block::kBasic);
  at::Tensor forward(const at::Tensor& images);

  torch::nn::Conv2d conv1;
  nn::BatchNorm2d bn1;
  torch::nn::Sequential layer1, layer2, layer3, layer4;
  torch::nn::Linear fc;

 private:
  torch::nn::Sequential MakeLayer(int64_t in_channels, int64_t channels, int blocks, int64_t stride, Block kind);
};
TORCH_MODULE(ResNet);

ResNet ResNet18(int64_t num_classes = 1000);
ResNet ResNet50(int64_t num_classes = 1000);

}  // namespace lockstep::models
