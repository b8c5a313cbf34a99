#include "lockstep/models/conv_net.h"

#include <ATen/Functions.h>
#include <gtest/gtest.h>
#include <torch/nn/functional/loss.h>
#include <torch/optim/sgd.h>
#include <torch/utils.h>

#include "lockstep/checkpoint/pth.h"
#include "lockstep/checkpoint/state_dict.h"
#include "lockstep/nn/channels_last.h"

namespace lockstep {
namespace {

/// Loads Python's weights, takes its three steps, and compares.
void ExpectPythonsResults(bool channels_last) {
  const auto golden = LoadPth("tests/models/conv_net.pth");
  ASSERT_TRUE(golden.ok()) << golden.status();
  models::ConvNet model;
  if (channels_last) nn::ToChannelsLast(*model);
  const absl::Status loaded = LoadModuleState(*golden->find("before"), *model);
  ASSERT_TRUE(loaded.ok()) << loaded;
  const at::Tensor input = *golden->find("input")->tensor(), target = *golden->find("target")->tensor();
  torch::optim::SGD optimizer(model->parameters(), torch::optim::SGDOptions(0.05).weight_decay(5e-5));
  for (const auto& expected : *golden->find("losses")->items()) {
    optimizer.zero_grad();
    const at::Tensor loss = torch::nn::functional::cross_entropy(model->forward(input), target);
    EXPECT_NEAR(loss.item<double>(), *expected.number(), 1e-5);
    loss.backward();
    optimizer.step();
  }
  const Value after = ModuleState(*model);
  for (const auto& [name, expected] : golden->find("after")->dict()->items) {
    EXPECT_TRUE(at::allclose(*after.find(*name.string())->tensor(), *expected.tensor(), 1e-4, 1e-6)) << *name.string();
  }
  model->eval();
  EXPECT_TRUE(at::allclose(model->forward(input), *golden->find("logits")->tensor(), 1e-4, 1e-5));
}

TEST(ConvNet, TrainsAsInPython) { ExpectPythonsResults(false); }
TEST(ConvNet, TrainsAsInPythonChannelsLast) { ExpectPythonsResults(true); }

TEST(ConvNet, TheSeedDecidesTheWeights) {
  torch::manual_seed(3);
  models::ConvNet a;
  torch::manual_seed(3);
  models::ConvNet b;
  torch::manual_seed(4);
  models::ConvNet c;
  EXPECT_TRUE(a->parameters()[0].equal(b->parameters()[0]));
  EXPECT_FALSE(a->parameters()[0].equal(c->parameters()[0]));
}

TEST(ToChannelsLast, AlsoChangesTensorsWithOneChannel) {
  models::ConvNet model;
  const at::Tensor before = model->parameters()[0].detach().clone();
  nn::ToChannelsLast(*model);
  const at::Tensor weight = model->parameters()[0];
  EXPECT_EQ(weight.stride(1), 1);
  EXPECT_EQ(weight.stride(3), 1);
  EXPECT_TRUE(weight.equal(before));
  EXPECT_TRUE(weight.requires_grad());
}

}  // namespace
}  // namespace lockstep
