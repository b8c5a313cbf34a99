#pragma once

#include <absl/status/statusor.h>
#include <torch/arg.h>
#include <torch/nn/module.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/pimpl.h>

#include <string>
#include <vector>

#include "lockstep/nn/batch_norm.h"

namespace lockstep::models {

/// Two 3×3 convolutions and a shortcut, of ResNet-18 and ResNet-34.
class BasicBlockImpl : public torch::nn::Module {
 public:
  BasicBlockImpl(int64_t in_channels, int64_t channels, int64_t stride);
  at::Tensor forward(const at::Tensor& input);

  torch::nn::Sequential downsample;  ///< Null where the shortcut is the input itself.
  torch::nn::Conv2d conv1, conv2;
  nn::BatchNorm2d bn1, bn2;
};
TORCH_MODULE(BasicBlock);

/// 1×1, 3×3 and 1×1 convolutions, the last with four times the channels, and a shortcut, of ResNet-50 and deeper ones;
/// the stride is the 3×3 one's, as in torchvision.
class BottleneckImpl : public torch::nn::Module {
 public:
  BottleneckImpl(int64_t in_channels, int64_t channels, int64_t stride);
  at::Tensor forward(const at::Tensor& input);

  torch::nn::Sequential downsample;  ///< Null where the shortcut is the input itself.
  torch::nn::Conv2d conv1, conv2, conv3;
  nn::BatchNorm2d bn1, bn2, bn3;
};
TORCH_MODULE(Bottleneck);

struct ResNetOptions {
  ResNetOptions(int64_t num_classes = 1000) : num_classes_(num_classes) {}  // NOLINT: implicit, as LibTorch's options

  TORCH_ARG(int64_t, num_classes);
  /// For pictures of 32×32: a first convolution of 3×3 without stride, and no max-pool after it (He et al., 4.2).
  TORCH_ARG(bool, small_images) = false;
  /// The last batch norm of each block begins with zeros, so that it is the identity (Goyal et al., arXiv:1706.02677).
  TORCH_ARG(bool, zero_init_residual) = false;
};

/// Residual networks (He et al., arXiv:1512.03385). Input (N, 3, H, W), H and W at least 32 (4 for small images);
/// output (N, num_classes) logits. Parameters are named as in torchvision (`conv1.weight`, `layer1.0.bn1.bias`, …,
/// `fc.weight`) and begin with the same numbers as torchvision's after the same `manual_seed`. The batch norm can be
/// synchronised.
class ResNetImpl : public torch::nn::Module {
 public:
  enum class Block { kBasic, kBottleneck };
  /// `blocks`: how many in each of the four layers; {2, 2, 2, 2} of the basic kind is ResNet-18.
  explicit ResNetImpl(const std::vector<int>& blocks, Block kind = Block::kBasic, const ResNetOptions& options = {});
  at::Tensor forward(const at::Tensor& images);

  torch::nn::Conv2d conv1;
  nn::BatchNorm2d bn1;
  torch::nn::Sequential layer1, layer2, layer3, layer4;
  torch::nn::Linear fc;

 private:
  torch::nn::Sequential MakeLayer(int64_t in_channels, int64_t channels, int blocks, int64_t stride, Block kind);

  const bool small_images_;
};
TORCH_MODULE(ResNet);

ResNet ResNet18(const ResNetOptions& options = {});
ResNet ResNet34(const ResNetOptions& options = {});
ResNet ResNet50(const ResNetOptions& options = {});
ResNet ResNet101(const ResNetOptions& options = {});
ResNet ResNet152(const ResNetOptions& options = {});

/// Whether MakeResNet knows the name. InvalidArgument that lists those that it does.
absl::Status CheckResNetName(const std::string& name);

/// By torchvision's name, "resnet18" to "resnet152". CheckResNetName's error for another.
absl::StatusOr<ResNet> MakeResNet(const std::string& name, const ResNetOptions& options = {});

}  // namespace lockstep::models
