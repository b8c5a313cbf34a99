#include "lockstep/optim/fused_sgd.h"

#include <ATen/Functions.h>
#include <gtest/gtest.h>
#include <torch/optim/sgd.h>

#include <tuple>
#include <vector>

#include "lockstep/checkpoint/state_dict.h"

namespace lockstep {
namespace {

std::vector<at::Tensor> Parameters(at::ScalarType type) {
  std::vector<at::Tensor> parameters;
  for (const int64_t n : {1, 7, 33, 1000}) parameters.push_back(at::sin(at::arange(n * 6)).view({n, 6}).to(type));
  parameters.push_back(
      at::cos(at::arange(2 * 3 * 4 * 5)).view({2, 3, 4, 5}).to(type).contiguous(at::MemoryFormat::ChannelsLast));
  for (auto& p : parameters) p.set_requires_grad(true);
  return parameters;
}

/// Both take ten steps, with a parameter that has no gradient at first.
template <typename A, typename B>
void ExpectAlike(const torch::optim::SGDOptions& options, at::ScalarType type = at::kFloat, bool transposed = false) {
  const auto a = Parameters(type), b = Parameters(type);
  A first(a, options);
  B second(b, options);
  for (int step = 0; step < 10; ++step) {
    for (const auto& parameters : {a, b}) {
      for (size_t i = step < 3 ? 1 : 0; i < parameters.size(); ++i) {
        at::Tensor gradient = at::empty_like(parameters[i]);
        gradient.copy_(at::sin(at::arange(gradient.numel()) * (step + 1)).view(gradient.sizes()));
        if (transposed && gradient.dim() == 2) gradient = gradient.t().contiguous().t();
        parameters[i].mutable_grad() = gradient;
      }
    }
    first.step();
    second.step();
  }
  for (size_t i = 0; i < a.size(); ++i) {
    EXPECT_TRUE(at::allclose(a[i], b[i], type == at::kDouble ? 1e-12 : 1e-5, 1e-6)) << i;
  }
  const auto states = std::pair{OptimizerState(first), OptimizerState(second)};
  ASSERT_TRUE(states.first.ok());
  EXPECT_EQ(states.first->find("state")->dict()->items.size(), states.second->find("state")->dict()->items.size());
}

TEST(FusedSGD, StepsAsSGD) {
  using torch::optim::SGD;
  using torch::optim::SGDOptions;
  for (const auto type : {at::kFloat, at::kDouble}) {
    ExpectAlike<FusedSGD, SGD>(SGDOptions(0.1), type);
    ExpectAlike<FusedSGD, SGD>(SGDOptions(0.1).momentum(0.9).weight_decay(0.01), type);
    ExpectAlike<FusedSGD, SGD>(SGDOptions(0.1).momentum(0.9).nesterov(true), type);
    ExpectAlike<FusedSGD, SGD>(SGDOptions(0.1).momentum(0.9).dampening(0.5), type);
  }
}

TEST(FusedSGD, GradientsOfAnotherLayoutAreTakenAsTheyAre) {
  ExpectAlike<FusedSGD, torch::optim::SGD>(torch::optim::SGDOptions(0.1).momentum(0.9), at::kFloat, true);
}

TEST(FusedSGD, GoesOnFromSGDsState) {
  const auto options = torch::optim::SGDOptions(0.1).momentum(0.9);
  const auto a = Parameters(at::kFloat), b = Parameters(at::kFloat);
  torch::optim::SGD plain(a, options);
  FusedSGD fused(b, options);
  for (const auto& p : a) p.mutable_grad() = at::ones_like(p);
  plain.step();
  for (size_t i = 0; i < a.size(); ++i) {
    b[i].detach().copy_(a[i].detach());
    b[i].mutable_grad() = at::ones_like(b[i]);
  }
  const auto state = OptimizerState(plain);
  ASSERT_TRUE(state.ok());
  ASSERT_TRUE(LoadOptimizerState(*state, fused).ok());
  plain.step();
  fused.step();
  for (size_t i = 0; i < a.size(); ++i) EXPECT_TRUE(at::allclose(a[i], b[i], 1e-6, 1e-7));
}

TEST(FusedSGD, AClosureComesFirst) {
  auto parameters = Parameters(at::kFloat);
  FusedSGD optimizer(parameters, torch::optim::SGDOptions(0.1));
  const at::Tensor before = parameters[1].detach().clone();
  const at::Tensor loss = optimizer.step([&] {
    optimizer.zero_grad();
    at::Tensor sum = parameters[1].sum();
    sum.backward();
    return sum;
  });
  EXPECT_TRUE(loss.defined());
  EXPECT_TRUE(at::allclose(parameters[1], before - 0.1));
}

}  // namespace
}  // namespace lockstep
