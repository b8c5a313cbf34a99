#include "lockstep/checkpoint/state_dict.h"

#include <ATen/Functions.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/rmsprop.h>
#include <torch/optim/sgd.h>
#include <torch/utils.h>

#include "lockstep/checkpoint/pth.h"
#include "lockstep/models/conv_net.h"

namespace lockstep {
namespace {

TEST(ModuleState, HasPythonsNamesInPythonsOrder) {
  models::ConvNet model;
  const Value state = ModuleState(*model);
  std::vector<std::string> names;
  for (const auto& [key, value] : state.dict()->items) names.push_back(*key.string());
  const std::vector<std::string> expected = {"layer1.0.weight",
                                             "layer1.0.bias",
                                             "layer1.1.weight",
                                             "layer1.1.bias",
                                             "layer1.1.running_mean",
                                             "layer1.1.running_var",
                                             "layer1.1.num_batches_tracked",
                                             "layer2.0.weight",
                                             "layer2.0.bias",
                                             "layer2.1.weight",
                                             "layer2.1.bias",
                                             "layer2.1.running_mean",
                                             "layer2.1.running_var",
                                             "layer2.1.num_batches_tracked",
                                             "fc.1.weight",
                                             "fc.1.bias",
                                             "fc.3.weight",
                                             "fc.3.bias"};
  EXPECT_EQ(names, expected);
  EXPECT_EQ(state.dict()->kind, ValueDict::Kind::kOrdered);
}

TEST(ModuleState, ListsEveryDifferenceInOneError) {
  torch::nn::Linear small(3, 2);
  Value state = ModuleState(*small);
  state.set("weight", at::ones({1}));
  state.dict()->items.erase(state.dict()->items.begin() + 1);  // the bias
  state.set("extra", at::ones({1}));
  state.set("more", 3);
  EXPECT_EQ(LoadModuleState(state, *small).message(),
            "model state is of another model: 'weight' has shape [1] in the checkpoint, [2, 3] in the model; 'bias' is "
            "missing from the checkpoint; 'extra' is not in the model; 'more' is not in the model");
  const auto differences = CompareModuleState(state, *small);
  ASSERT_TRUE(differences.ok());
  EXPECT_EQ(differences->missing, std::vector<std::string>{"bias"});
  EXPECT_EQ(differences->unexpected, (std::vector<std::string>{"extra", "more"}));
  EXPECT_EQ(differences->wrong.size(), 1u);
}

TEST(ModuleState, LoadsWhatFitsWhenAskedAndTakesAPrefixOff) {
  torch::nn::Linear from(3, 2), to(3, 2);
  Value state((ValueDict()));
  state.set("module.weight", from->weight.detach());
  state.set("bias", at::ones({7}));
  EXPECT_FALSE(LoadModuleState(state, *to).ok());
  LoadModuleOptions options;
  options.prefix = "module.";
  EXPECT_NE(LoadModuleState(state, *to, options).message().find("'bias' has shape"), std::string::npos);
  EXPECT_FALSE(to->weight.equal(from->weight));
  options.strict = false;
  const at::Tensor bias = to->bias.detach().clone();
  ASSERT_TRUE(LoadModuleState(state, *to, options).ok());
  EXPECT_TRUE(to->weight.equal(from->weight));
  EXPECT_TRUE(to->bias.equal(bias));
  EXPECT_FALSE(LoadModuleState(Value(3), *to, options).ok());
}

TEST(ModuleState, NamesADifferenceAndChangesNothing) {
  torch::nn::Linear small(3, 2), wide(4, 2);
  const at::Tensor before = wide->weight.detach().clone();
  const absl::Status status = LoadModuleState(ModuleState(*small), *wide);
  ASSERT_FALSE(status.ok());
  EXPECT_EQ(status.message(),
            "model state is of another model: 'weight' has shape [2, 3] in the checkpoint, [2, 4] in the model");
  EXPECT_TRUE(wide->weight.equal(before));
  models::ConvNet net;
  EXPECT_NE(
      LoadModuleState(ModuleState(*small), *net).message().find("'layer1.0.weight' is missing from the checkpoint"),
      std::string::npos);
  EXPECT_FALSE(LoadModuleState(Value(3), *net).ok());
}

/// Steps a layer with `make`'s optimizer, saves, and goes on in a copy: both end the same.
template <typename Make>
void ExpectResumes(Make make) {
  torch::manual_seed(1);
  torch::nn::Linear a(3, 2), b(3, 2);
  const at::Tensor input = at::rand({5, 3});
  auto first = make(a);
  const auto step = [&](torch::nn::Linear& layer, torch::optim::Optimizer& optimizer) {
    optimizer.zero_grad();
    layer->forward(input).square().sum().backward();
    optimizer.step();
  };
  for (int i = 0; i < 3; ++i) step(a, *first);

  const std::string path = std::string(std::getenv("TEST_TMPDIR")) + "/optimizer.pt";
  Value both((ValueDict()));
  both.set("model", ModuleState(*a));
  auto state = OptimizerState(*first);
  ASSERT_TRUE(state.ok()) << state.status();
  both.set("optimizer", *state);
  ASSERT_TRUE(SavePth(both, path).ok());
  const auto loaded = LoadPth(path);
  ASSERT_TRUE(loaded.ok()) << loaded.status();
  auto second = make(b);
  second->param_groups()[0].options().set_lr(123);
  ASSERT_TRUE(LoadModuleState(*loaded->find("model"), *b).ok());
  const absl::Status restored = LoadOptimizerState(*loaded->find("optimizer"), *second);
  ASSERT_TRUE(restored.ok()) << restored;
  for (int i = 0; i < 3; ++i) {
    step(a, *first);
    step(b, *second);
  }
  EXPECT_TRUE(a->weight.equal(b->weight));
}

TEST(OptimizerState, SgdResumesExactly) {
  ExpectResumes([](torch::nn::Linear& l) {
    return std::make_unique<torch::optim::SGD>(
        l->parameters(), torch::optim::SGDOptions(0.1).momentum(0.9).nesterov(true).weight_decay(1e-3));
  });
  ExpectResumes([](torch::nn::Linear& l) {
    return std::make_unique<torch::optim::SGD>(l->parameters(), torch::optim::SGDOptions(0.1));
  });
}

TEST(OptimizerState, AdamAndAdamWResumeExactly) {
  ExpectResumes([](torch::nn::Linear& l) {
    return std::make_unique<torch::optim::Adam>(l->parameters(), torch::optim::AdamOptions(0.1).amsgrad(true));
  });
  ExpectResumes([](torch::nn::Linear& l) {
    return std::make_unique<torch::optim::AdamW>(l->parameters(), torch::optim::AdamWOptions(0.1).weight_decay(0.1));
  });
}

TEST(OptimizerState, RefusesWhatDoesNotFit) {
  torch::nn::Linear a(3, 2), b(4, 2);
  torch::optim::SGD one(a->parameters(), torch::optim::SGDOptions(0.1).momentum(0.9));
  a->forward(at::rand({5, 3})).sum().backward();
  one.step();
  torch::optim::SGD wide(b->parameters(), torch::optim::SGDOptions(0.1).momentum(0.9));
  EXPECT_FALSE(LoadOptimizerState(*OptimizerState(one), wide).ok());
  torch::optim::SGD fewer({a->weight}, torch::optim::SGDOptions(0.1));
  EXPECT_FALSE(LoadOptimizerState(*OptimizerState(one), fewer).ok());
  torch::optim::Adam other(a->parameters());
  EXPECT_FALSE(LoadOptimizerState(*OptimizerState(one), other).ok());
  torch::optim::RMSprop unknown(a->parameters());
  EXPECT_FALSE(OptimizerState(unknown).ok());
}

}  // namespace
}  // namespace lockstep
