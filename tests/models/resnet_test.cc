#include "lockstep/models/resnet.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Functions.h>
#include <c10/core/GradMode.h>
#include <gtest/gtest.h>
#include <torch/utils.h>

#include "lockstep/checkpoint/pth.h"
#include "lockstep/nn/channels_last.h"

namespace lockstep {
namespace {

void ExpectClose(const at::Tensor& got, const at::Tensor& expected, double tolerance) {
  ASSERT_EQ(got.sizes(), expected.sizes());
  EXPECT_LE(((got - expected).abs().max() / expected.abs().max()).item<double>(), tolerance);
}

/// The network is as torchvision's after manual_seed(7), and makes the same of the same pictures.
void ExpectTorchvisions(models::ResNet net, const std::string& name, bool channels_last = false) {
  const auto file = LoadPth("tests/models/resnet.pth");
  ASSERT_TRUE(file.ok()) << file.status();
  const Value& golden = *file->find(name);
  double first = 0;
  for (const auto& p : net->parameters()) first += p.flatten()[0].item<double>();
  EXPECT_NEAR(first, *golden.find("first")->number(), 1e-6);
  if (channels_last) nn::ToChannelsLast(*net);
  const at::Tensor x = at::rand({4, 3, 64, 64}, at::make_generator<at::CPUGeneratorImpl>(8));
  const c10::NoGradGuard no_grad;
  // Batch norm over few numbers tells other orders of summation.
  const double tolerance = channels_last ? 1e-4 : 1e-5;  // of the largest number
  net->train();
  ExpectClose(net->forward(x), *golden.find("train")->tensor(), tolerance);
  net->eval();
  ExpectClose(net->forward(x), *golden.find("eval")->tensor(), tolerance);
}

class ResNet : public testing::TestWithParam<const char*> {};

TEST_P(ResNet, BeginsAndComputesAsTorchvisions) {
  torch::manual_seed(7);
  ExpectTorchvisions(*models::MakeResNet(GetParam(), 10), GetParam());
}

INSTANTIATE_TEST_SUITE_P(Depths, ResNet, testing::Values("resnet18", "resnet34", "resnet50", "resnet101", "resnet152"));

TEST(ResNet50, ChannelsLastComputesTheSame) {
  torch::manual_seed(7);
  ExpectTorchvisions(models::ResNet50(10), "resnet50", /*channels_last=*/true);
}

TEST(ResNet50, BlocksCanBeginAsIdentities) {
  torch::manual_seed(7);
  ExpectTorchvisions(models::ResNet50(models::ResNetOptions(10).zero_init_residual(true)), "zero");
}

TEST(ResNet18, SmallImagesHaveAFirstLayerOfTheirOwn) {
  const auto file = LoadPth("tests/models/resnet.pth");
  ASSERT_TRUE(file.ok()) << file.status();
  torch::manual_seed(7);
  const models::ResNet plain = models::ResNet18(10);
  models::ResNet net = models::ResNet18(models::ResNetOptions(10).small_images(true));
  const c10::NoGradGuard no_grad;
  const auto from = plain->named_parameters();
  for (auto& p : net->named_parameters()) {
    if (p.key() != "conv1.weight") p.value().copy_(from[p.key()]);
  }
  net->conv1->weight.copy_(*file->find("small_conv1")->tensor());
  ExpectTorchvisions(net, "small");
  EXPECT_EQ(net->forward(at::zeros({2, 3, 4, 4})).sizes(), (c10::IntArrayRef{2, 10}));
}

TEST(ResNet, AnUnknownNameListsTheKnown) {
  const auto net = models::MakeResNet("resnet20");
  ASSERT_FALSE(net.ok());
  EXPECT_NE(net.status().message().find("resnet18, resnet34"), std::string::npos) << net.status();
}

}  // namespace
}  // namespace lockstep
