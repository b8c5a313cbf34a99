#include "lockstep/optim/parameter_groups.h"

#include <ATen/Functions.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/normalization.h>
#include <torch/nn/modules/rnn.h>
#include <torch/optim/adamw.h>
#include <torch/optim/sgd.h>

#include "lockstep/nn/batch_norm.h"
#include "lockstep/optim/learning_rate.h"

namespace lockstep {
namespace {

struct NetImpl : torch::nn::Module {
  NetImpl() {
    register_module("backbone", torch::nn::Sequential(torch::nn::Conv2d(1, 2, 3), nn::BatchNorm2d(2)));
    register_module("norm", torch::nn::LayerNorm(torch::nn::LayerNormOptions({2, 2})));
    register_module("rnn", torch::nn::LSTM(2, 3));
    auto head = register_module("head", torch::nn::Linear(3, 3));
    register_parameter("temperature", at::ones({}));
    // Shared with the head; and a bias with two dimensions.
    register_parameter("tied", head->weight);
    register_parameter("attention_bias", at::ones({2, 2}));
  }
};
TORCH_MODULE(Net);

using Names = std::vector<std::string>;

TEST(ParameterGroups, BiasesAndNormsDontDecay) {
  Net net;
  const auto groups = GroupParameters(*net);
  ASSERT_TRUE(groups.ok()) << groups.status();
  ASSERT_EQ(groups->size(), 2u);
  EXPECT_EQ((*groups)[0].names, (Names{"tied", "backbone.0.weight", "rnn.weight_ih_l0", "rnn.weight_hh_l0"}));
  EXPECT_TRUE((*groups)[0].decays);
  EXPECT_EQ((*groups)[1].names,
            (Names{"temperature", "attention_bias", "backbone.0.bias", "backbone.1.weight", "backbone.1.bias",
                   "norm.weight", "norm.bias", "rnn.bias_ih_l0", "rnn.bias_hh_l0", "head.bias"}));
  EXPECT_FALSE((*groups)[1].decays);
  const auto all = GroupParameters(*net, {true, {}});
  ASSERT_EQ(all->size(), 1u);
  EXPECT_EQ((*all)[0].parameters.size(), net->parameters().size() - 1) << "each once";
}

namespace normalizing_Norms {
template <typename T>
struct FlowImpl : torch::nn::Module {
  FlowImpl() { register_parameter("weight", at::ones({2, 2})); }
};
}  // namespace normalizing_Norms

TEST(ParameterGroups, ANormIsToldByTheNameOfItsClassAlone) {
  const auto flow = std::make_shared<normalizing_Norms::FlowImpl<torch::nn::LayerNormImpl>>();
  EXPECT_TRUE(GroupParameters(*flow)->front().decays);
  const normalizing_Norms::FlowImpl<int> on_the_stack;
  EXPECT_TRUE(GroupParameters(on_the_stack)->front().decays);
}

TEST(ParameterGroups, RatesAndDecaysByName) {
  Net net;
  const auto groups = OptimizerGroups(*net, torch::optim::AdamWOptions(1e-3).weight_decay(0.1),
                                      {false, {{"^backbone\\.", 1e-4}, {"^head", 1e-2, 0.5}}});
  ASSERT_TRUE(groups.ok()) << groups.status();
  torch::optim::AdamW optimizer(*groups, torch::optim::AdamWOptions(1e-3));
  std::vector<std::array<double, 3>> found;
  for (const auto& group : optimizer.param_groups()) {
    const auto& options = static_cast<const torch::optim::AdamWOptions&>(group.options());
    found.push_back({static_cast<double>(group.params().size()), options.lr(), options.weight_decay()});
  }
  EXPECT_EQ(found, (std::vector<std::array<double, 3>>{
                       {3, 1e-3, 0.1}, {6, 1e-3, 0}, {1, 1e-4, 0.1}, {3, 1e-4, 0}, {1, 1e-2, 0.5}}));
}

TEST(ParameterGroups, TheOptimizerDoesWhatTheGroupsSay) {
  torch::nn::Linear layer(2, 2);
  torch::nn::init::ones_(layer->weight);
  torch::nn::init::ones_(layer->bias);
  const auto options = torch::optim::SGDOptions(0.5).weight_decay(0.5);
  torch::optim::SGD optimizer(*OptimizerGroups(*layer, options), options);
  layer->weight.mutable_grad() = at::zeros({2, 2});
  layer->bias.mutable_grad() = at::zeros({2});
  optimizer.step();
  EXPECT_EQ(layer->weight[0][0].item<float>(), 0.75);
  EXPECT_EQ(layer->bias[0].item<float>(), 1);
}

TEST(ParameterGroups, BadRulesAreNamed) {
  Net net;
  const auto error = [&](const ParameterGroupRule& rule) {
    return std::string(GroupParameters(*net, {false, {{"^backbone"}, rule}}).status().message());
  };
  EXPECT_NE(error({"("}).find("'('"), std::string::npos) << error({"("});
  EXPECT_NE(error({"decoder"}).find("'decoder': matches no parameter"), std::string::npos);
  EXPECT_NE(error({"backbone.0"}).find("an earlier rule took"), std::string::npos);
  EXPECT_NE(error({"head", -1.}).find("at least 0"), std::string::npos);
  EXPECT_NE(error({"head", std::nullopt, -1.}).find("at least 0"), std::string::npos);
  EXPECT_EQ(error({"head"}), "");
}

TEST(LearningRate, ScalesWithTheRanks) {
  EXPECT_EQ(ScaleLearningRate(0.1, 4, LearningRateScaling::kNone), 0.1);
  EXPECT_EQ(ScaleLearningRate(0.1, 4, LearningRateScaling::kLinear), 0.4);
  EXPECT_EQ(ScaleLearningRate(0.1, 4, LearningRateScaling::kSqrt), 0.2);
  EXPECT_EQ(ScaleLearningRate(0.1, 1, LearningRateScaling::kLinear), 0.1);
  EXPECT_EQ(*ParseLearningRateScaling("sqrt"), LearningRateScaling::kSqrt);
  EXPECT_FALSE(ParseLearningRateScaling("cubic").ok());
}

}  // namespace
}  // namespace lockstep
