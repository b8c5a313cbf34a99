#include "lockstep/amp/grad_scaler.h"

#include <ATen/Functions.h>
#include <gtest/gtest.h>
#include <torch/optim/sgd.h>

#include <fstream>
#include <cmath>
#include <limits>
#include <sstream>

#include "lockstep/amp/autocast.h"

namespace lockstep {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();

struct Fixture {
  at::Tensor p = at::ones({3}).requires_grad_();
  torch::optim::SGD optimizer{{p}, torch::optim::SGDOptions(1.)};
  void Backward(GradScaler& scaler, float gradient) {
    optimizer.zero_grad();
    scaler.Scale((p * gradient).sum()).backward();
  }
};

TEST(GradScaler, GivesPythonsScalesStepByStep) {
  std::ifstream file("tests/amp/grad_scaler.txt");
  int rows = 0;
  for (std::string line; std::getline(file, line); ++rows) {
    std::istringstream in(line);
    GradScalerOptions options;
    std::string colon, steps;
    in >> options.init_scale >> options.growth_factor >> options.backoff_factor >> options.growth_interval >> colon >>
        steps >> colon;
    std::vector<double> scales(steps.size()), trackers(steps.size());
    for (double& scale : scales) in >> scale;
    in >> colon;
    for (double& tracker : trackers) in >> tracker;
    GradScaler scaler(options);
    Fixture f;
    for (size_t i = 0; i < steps.size(); ++i) {
      f.Backward(scaler, steps[i] == 'i' ? kInf : 1e-30f);
      scaler.Step(f.optimizer);
      scaler.Update();
      EXPECT_EQ(scaler.scale(), scales[i]) << "row " << rows << " step " << i;
      EXPECT_EQ(scaler.state().at("_growth_tracker"), trackers[i]) << "row " << rows << " step " << i;
    }
  }
  EXPECT_EQ(rows, 5);
}

TEST(GradScaler, StepsWithTheUnscaledGradientAndSkipsAnInfiniteOne) {
  GradScaler scaler;
  Fixture f;
  f.Backward(scaler, 0.5);
  EXPECT_EQ(f.p.grad()[0].item<float>(), 32768);
  EXPECT_TRUE(scaler.Step(f.optimizer));
  EXPECT_EQ(f.p[0].item<float>(), 0.5);
  scaler.Update();
  f.Backward(scaler, kInf);
  EXPECT_FALSE(scaler.Step(f.optimizer));
  EXPECT_EQ(f.p[0].item<float>(), 0.5);
  scaler.Update();
  EXPECT_EQ(scaler.scale(), 32768);
}

TEST(GradScaler, EachOptimizerHasItsStage) {
  GradScaler scaler;
  Fixture f;
  EXPECT_THROW(scaler.Update(), c10::Error);
  EXPECT_THROW(scaler.Step(f.optimizer), c10::Error) << "nothing was scaled";
  f.Backward(scaler, 1);
  scaler.Unscale(f.optimizer);
  EXPECT_EQ(f.p.grad()[0].item<float>(), 1);
  EXPECT_THROW(scaler.Unscale(f.optimizer), c10::Error);
  scaler.Step(f.optimizer);
  EXPECT_EQ(f.p[0].item<float>(), 0) << "not unscaled twice";
  EXPECT_THROW(scaler.Step(f.optimizer), c10::Error);
  EXPECT_THROW(scaler.Unscale(f.optimizer), c10::Error);
  scaler.Update();
  f.Backward(scaler, 1);
  EXPECT_NO_THROW(scaler.Step(f.optimizer));
}

TEST(GradScaler, RefusesHalfGradients) {
  GradScaler scaler;
  at::Tensor p = at::ones({2}, at::kHalf).requires_grad_();
  torch::optim::SGD optimizer({p}, torch::optim::SGDOptions(1.));
  scaler.Scale(at::ones({}));
  p.mutable_grad() = at::ones({2}, at::kHalf);
  EXPECT_THROW(scaler.Unscale(optimizer), c10::Error);
}

TEST(GradScaler, KeepsItsStateAlsoBeforeTheFirstUse) {
  GradScalerOptions options;
  options.growth_interval = 3;
  GradScaler a(options), b;
  Fixture f;
  for (int i = 0; i < 2; ++i) {
    f.Backward(a, 1);
    a.Step(f.optimizer);
    a.Update();
  }
  ASSERT_TRUE(b.set_state(a.state()).ok());
  EXPECT_EQ(b.state(), a.state());
  f.Backward(b, 1);
  b.Step(f.optimizer);
  b.Update();
  EXPECT_EQ(b.scale(), 131072) << "the third good step";
  EXPECT_FALSE(b.set_state({}).ok());
  EXPECT_FALSE(b.set_state({{"scale", 1}}).ok());
  auto broken = a.state();
  broken["growth_interval"] = 0;
  EXPECT_FALSE(b.set_state(broken).ok());
  broken["growth_interval"] = std::nan("");
  EXPECT_FALSE(b.set_state(broken).ok());
}

TEST(GradScaler, OffItDoesNothing) {
  GradScalerOptions options;
  options.enabled = false;
  GradScaler scaler(options);
  Fixture f;
  f.Backward(scaler, 1);
  EXPECT_EQ(f.p.grad()[0].item<float>(), 1);
  EXPECT_TRUE(scaler.Step(f.optimizer));
  EXPECT_NO_THROW(scaler.Update());
  EXPECT_EQ(scaler.scale(), 1);
}

TEST(GradScaler, RefusesFactorsOutOfRange) {
  GradScalerOptions options;
  options.growth_factor = 1;
  EXPECT_THROW(GradScaler{options}, c10::Error);
  options = {};
  options.backoff_factor = 1;
  EXPECT_THROW(GradScaler{options}, c10::Error);
  options = {};
  options.growth_interval = 0;
  EXPECT_THROW(GradScaler{options}, c10::Error);
}

at::ScalarType ProductType() { return at::rand({2, 2}).matmul(at::rand({2, 2})).scalar_type(); }

TEST(AutocastGuard, NestsAndIsRestored) {
  EXPECT_EQ(ProductType(), at::kFloat);
  {
    const AutocastGuard outer(at::kCPU, at::kBFloat16);
    EXPECT_EQ(ProductType(), at::kBFloat16);
    {
      const AutocastGuard off(at::kCPU, std::nullopt);
      EXPECT_EQ(ProductType(), at::kFloat);
      const AutocastGuard half(at::kCPU, at::kHalf);
      EXPECT_EQ(ProductType(), at::kHalf);
    }
    EXPECT_EQ(ProductType(), at::kBFloat16);
  }
  EXPECT_EQ(ProductType(), at::kFloat);
  try {
    const AutocastGuard guard(at::kCPU, at::kBFloat16);
    throw std::runtime_error("x");
  } catch (const std::runtime_error&) {
  }
  EXPECT_EQ(ProductType(), at::kFloat);
  EXPECT_THROW(AutocastGuard(at::kCPU, at::kDouble), c10::Error);
  EXPECT_EQ(ProductType(), at::kFloat);
}

}  // namespace
}  // namespace lockstep
