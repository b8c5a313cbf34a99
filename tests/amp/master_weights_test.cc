#include <ATen/Functions.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/normalization.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/sgd.h>

#include <limits>

#include "lockstep/amp/grad_scaler.h"
#include "lockstep/amp/master_weight_optimizer.h"
#include "lockstep/amp/no_scaler.h"
#include "lockstep/amp/static_scaler.h"
#include "lockstep/optim/clip_gradients.h"

namespace lockstep {
namespace {

template <typename T>
using Master = MasterWeightOptimizer<T>;

TEST(MasterWeightOptimizer, KeepsUpdatesThatBfloat16Loses) {
  at::Tensor half = at::ones({3}, at::kBFloat16).requires_grad_(), plain = half.detach().clone().requires_grad_();
  Master<torch::optim::SGD> master({half}, torch::optim::SGDOptions(1e-3));
  torch::optim::SGD without({plain}, torch::optim::SGDOptions(1e-3));
  for (int i = 0; i < 100; ++i) {
    master.zero_grad();
    without.zero_grad();
    half.sum().backward();
    plain.sum().backward();
    master.step();
    without.step();
  }
  EXPECT_EQ(plain[0].item<float>(), 1) << "1 - 0.001 is 1 in bfloat16";
  EXPECT_NEAR(half[0].item<float>(), 0.9, 0.004);
  EXPECT_NEAR(master.copies()[0][0].item<float>(), 0.9, 1e-5);
}

TEST(MasterWeightOptimizer, StepsTheCopiesAsTheOptimizerStepsFloats) {
  torch::manual_seed(1);
  const at::Tensor start = at::randn({4, 3}).to(at::kBFloat16);
  at::Tensor half = start.clone().requires_grad_(), full = start.to(at::kFloat).requires_grad_();
  Master<torch::optim::AdamW> master({half}, torch::optim::AdamWOptions(1e-2));
  torch::optim::AdamW plain({full}, torch::optim::AdamWOptions(1e-2));
  for (int i = 0; i < 5; ++i) {
    const at::Tensor gradient = at::randn({4, 3}).to(at::kBFloat16);
    half.mutable_grad() = gradient;
    full.mutable_grad() = gradient.to(at::kFloat);
    master.step();
    plain.step();
    EXPECT_TRUE(master.copies()[0].equal(full));
    EXPECT_TRUE(half.equal(full.to(at::kBFloat16)));
    EXPECT_FALSE(half.grad().defined());
  }
}

TEST(MasterWeightOptimizer, TheScalerUnscalesAndChecksTheFloatCopies) {
  for (const auto dtype : {at::kBFloat16, at::kHalf}) {
    at::Tensor half = at::ones({2}, dtype).requires_grad_();
    Master<torch::optim::SGD> optimizer({half}, torch::optim::SGDOptions(1.));
    GradScaler scaler;
    const auto backward = [&](float gradient) {
      optimizer.zero_grad();
      scaler.Scale((half.to(at::kFloat) * gradient).sum()).backward();
    };
    // In float16 it would vanish without the scale, and again if the scale were taken out there.
    backward(1e-8f);
    scaler.Unscale(optimizer);
    EXPECT_NEAR(optimizer.copies()[0].grad()[0].item<double>(), 1e-8, 1e-10);
    EXPECT_TRUE(scaler.Step(optimizer));
    scaler.Update();
    backward(std::numeric_limits<float>::infinity());
    EXPECT_FALSE(scaler.Step(optimizer));
    scaler.Update();
    EXPECT_EQ(scaler.scale(), 32768);
    EXPECT_EQ(half[0].item<float>(), 1);
    backward(0.5f);
    EXPECT_TRUE(scaler.Step(optimizer)) << "nothing is left of the skipped step";
    EXPECT_EQ(half[0].item<float>(), 0.5);
  }
}

TEST(MasterWeightOptimizer, GradientsAddUpInFloatUntilTheyAreCleared) {
  at::Tensor half = at::zeros({1}, at::kBFloat16).requires_grad_();
  Master<torch::optim::SGD> optimizer({half}, torch::optim::SGDOptions(1.));
  torch::optim::Optimizer& base = optimizer;
  half.mutable_grad() = at::ones({1}, at::kBFloat16);
  optimizer.TakeGradients();
  half.mutable_grad() = at::full({1}, 1. / 512, at::kBFloat16);
  optimizer.TakeGradients();
  EXPECT_EQ(optimizer.copies()[0].grad().item<float>(), 1 + 1.f / 512);
  half.mutable_grad() = at::ones({1}, at::kBFloat16);
  optimizer.zero_grad();
  EXPECT_FALSE(half.grad().defined());
  EXPECT_FALSE(optimizer.copies()[0].grad().defined());
  optimizer.TakeGradients();
  half.mutable_grad() = at::ones({1}, at::kBFloat16);
  base.zero_grad();
  EXPECT_TRUE(half.grad().defined()) << "LibTorch's is not virtual";
  optimizer.ClearGradients();
  EXPECT_FALSE(half.grad().defined());
}

TEST(MasterWeightOptimizer, GroupsMixedDtypesFrozenParametersAndClosures) {
  torch::nn::Linear linear(3, 2);
  torch::nn::LayerNorm norm(torch::nn::LayerNormOptions({2}));
  linear->to(at::kBFloat16);
  linear->bias.set_requires_grad(false);
  std::vector<torch::optim::OptimizerParamGroup> groups;
  groups.emplace_back(linear->parameters(), std::make_unique<torch::optim::SGDOptions>(0.5));
  groups.emplace_back(norm->parameters());
  Master<torch::optim::SGD> optimizer(groups, torch::optim::SGDOptions(0.25));
  EXPECT_EQ(optimizer.half_parameters().size(), 2u);
  EXPECT_TRUE(optimizer.param_groups()[1].params()[0].is_same(norm->weight)) << "a float parameter is its own copy";
  EXPECT_EQ(optimizer.param_groups()[0].options().get_lr(), 0.5);
  const at::Tensor x = at::ones({4, 3}), bias = linear->bias.clone(), weight = linear->weight.detach().clone();
  const at::Tensor loss = optimizer.step([&] {
    const at::Tensor result = (linear(x.to(at::kBFloat16)).to(at::kFloat) * norm->weight).square().sum();
    result.backward();
    return result;
  });
  EXPECT_TRUE(loss.defined());
  EXPECT_TRUE(linear->bias.equal(bias));
  EXPECT_FALSE(linear->weight.equal(weight));
  at::Tensor added = at::ones({1}, at::kHalf).requires_grad_();
  optimizer.add_param_group(torch::optim::OptimizerParamGroup({added}));
  added.mutable_grad() = at::ones({1}, at::kHalf);
  optimizer.step();
  EXPECT_EQ(added.item<float>(), 0.75);
}

TEST(MasterWeightOptimizer, FollowsWhatElseChangesTheModel) {
  at::Tensor half = at::ones({2}, at::kBFloat16).requires_grad_();
  at::Tensor frozen = at::ones({2}, at::kBFloat16).requires_grad_(false);
  Master<torch::optim::Adam> optimizer({half, frozen}, torch::optim::AdamOptions(1e-3));
  const auto step = [&] {
    half.sum().backward();
    optimizer.step();
    optimizer.zero_grad();
  };
  step();
  const at::Tensor fine = optimizer.copies()[0].clone();
  EXPECT_FALSE(fine.equal(half.detach().to(at::kFloat)));
  step();
  EXPECT_NEAR((fine - optimizer.copies()[0])[0].item<float>(), 1e-3, 1e-5) << "its own steps are no changes";
  {
    const at::NoGradGuard no_grad;
    half.detach().copy_(at::full({2}, 7., at::kBFloat16));  // as LoadModuleState and DDP's broadcast do
    frozen.fill_(3);
  }
  step();
  EXPECT_NEAR(optimizer.copies()[0][0].item<float>(), 7, 0.01);
  EXPECT_EQ(frozen[0].item<float>(), 3) << "nor is what has no gradient written to";
  half.set_data(at::full({2}, 9., at::kBFloat16));
  step();
  EXPECT_NEAR(optimizer.copies()[0][0].item<float>(), 9, 0.01);
  // Out and back again, as for an evaluation with other weights: nothing is lost.
  const at::Tensor before = optimizer.copies()[0].clone(), kept = half.detach().clone();
  {
    const at::NoGradGuard no_grad;
    half.fill_(1);
    half.copy_(kept);
  }
  optimizer.param_groups()[0].options().set_lr(0);
  step();
  EXPECT_TRUE(optimizer.copies()[0].equal(before));
  EXPECT_THROW(optimizer.SetCopies({half}), c10::Error);
}

TEST(MasterWeightOptimizer, AStepUsesGradientsUpHoweverTheyAreCleared) {
  for (const bool of_model : {true, false}) {
    for (const bool with_scaler : {true, false}) {
      torch::nn::Linear layer(torch::nn::LinearOptions(2, 1).bias(false));
      layer->to(at::kBFloat16);
      Master<torch::optim::SGD> optimizer(layer->parameters(), torch::optim::SGDOptions(1.));
      torch::optim::Optimizer& base = optimizer;
      GradScaler dynamic;
      NoScaler none;
      LossScaler& scaler = with_scaler ? static_cast<LossScaler&>(dynamic) : none;
      for (int i = 0; i < 4; ++i) {
        const at::Tensor before = layer->weight.detach().clone();
        of_model ? layer->zero_grad() : base.zero_grad();
        const float factor = with_scaler && i == 1 ? std::numeric_limits<float>::infinity() : 1.f;
        (scaler.Scale(layer(at::ones({1, 2}, at::kBFloat16)).to(at::kFloat).sum()) * factor).backward();
        const bool stepped = scaler.Step(optimizer);
        EXPECT_EQ(stepped, factor == 1);
        scaler.Update();
        EXPECT_NEAR((before - layer->weight)[0][0].item<float>(), stepped ? 1 : 0, 0.02) << i;
      }
    }
  }
}

TEST(MasterWeightOptimizer, ATiedParameterMayBeListedTwice) {
  at::Tensor half = at::ones({2}, at::kBFloat16).requires_grad_();
  Master<torch::optim::SGD> optimizer({half, half}, torch::optim::SGDOptions(0.125));
  for (int i = 0; i < 3; ++i) {
    half.sum().backward();
    optimizer.step();
  }
  EXPECT_EQ(half[0].item<float>(), 0.625);
}

TEST(MasterWeightOptimizer, UnscaleBringsTheGradientsForClippingAlsoWithoutAScale) {
  NoScaler none;
  StaticScaler fixed(4);
  GradScalerOptions off;
  off.enabled = false;
  GradScaler disabled(off), dynamic;
  for (LossScaler* scaler : std::vector<LossScaler*>{&none, &fixed, &disabled, &dynamic}) {
    at::Tensor half = at::ones({4}, at::kBFloat16).requires_grad_();
    Master<torch::optim::SGD> optimizer({half}, torch::optim::SGDOptions(1.));
    scaler->Scale(half.to(at::kFloat).sum()).backward();
    scaler->Unscale(optimizer);
    EXPECT_EQ(ClipGradientNorm(AllParameters(optimizer), 1).item<double>(), 2);
    EXPECT_TRUE(scaler->Step(optimizer));
    EXPECT_EQ(half[0].item<float>(), 0.5);
  }
}

TEST(MasterWeightOptimizer, SparseGradients) {
  for (const auto dtype : {at::kBFloat16, at::kHalf}) {
    at::Tensor table = at::zeros({4, 2}, dtype).requires_grad_();
    Master<torch::optim::SGD> optimizer({table}, torch::optim::SGDOptions(1.));
    GradScaler scaler;
    scaler.Update(8.);
    const at::Tensor index = at::tensor({int64_t{1}, int64_t{3}, int64_t{1}});
    scaler.Scale(at::embedding(table, index, -1, false, /*sparse=*/true).to(at::kFloat).sum()).backward();
    EXPECT_TRUE(scaler.Step(optimizer));
    EXPECT_EQ(table[1][0].item<float>(), -2);
    EXPECT_EQ(table[3][1].item<float>(), -1);
    EXPECT_EQ(table[0][0].item<float>(), 0);
  }
}

}  // namespace
}  // namespace lockstep
