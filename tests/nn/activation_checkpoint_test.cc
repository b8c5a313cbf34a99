#include "lockstep/nn/activation_checkpoint.h"

#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>
#include <ATen/autocast_mode.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/nn/modules/linear.h>
#include <torch/utils.h>

namespace lockstep {
namespace {

/// Gradients of x, then of the parameters.
std::vector<at::Tensor> Gradients(torch::nn::Linear& linear, at::Tensor x,
                                  const std::function<at::Tensor(at::Tensor)>& run) {
  linear->zero_grad();
  x = x.detach().requires_grad_();
  torch::manual_seed(9);
  run(x).square().sum().backward();
  return {x.grad(), linear->weight.grad().clone(), linear->bias.grad().clone()};
}

void ExpectSame(const std::vector<at::Tensor>& a, const std::vector<at::Tensor>& b) {
  for (size_t i = 0; i < a.size(); ++i) EXPECT_TRUE(a[i].equal(b[i])) << i;
}

TEST(ActivationCheckpoint, GivesTheSameGradientsWithDropout) {
  torch::nn::Linear linear(4, 4);
  const at::Tensor x = at::randn({3, 4});
  const auto block = [&](const at::Tensor& t) { return at::dropout(at::tanh(linear->forward(t)), 0.5, true); };
  const auto plain = Gradients(linear, x, [&](at::Tensor t) { return block(block(t)) + at::rand({1}); });
  const auto checkpointed = Gradients(linear, x, [&](at::Tensor t) {
    return nn::ActivationCheckpoint(block, nn::ActivationCheckpoint(block, t)) + at::rand({1});
  });
  ExpectSame(plain, checkpointed);
}

TEST(ActivationCheckpoint, RunsTwiceAndLeavesTheGeneratorAlone) {
  torch::nn::Linear linear(4, 4);
  int runs = 0;
  const at::Tensor out = nn::ActivationCheckpoint(
      [&](const at::Tensor& t) {
        ++runs;
        return linear->forward(t) * at::rand({1});
      },
      at::ones({1, 4}));  // no input needs a gradient
  EXPECT_TRUE(out.requires_grad());
  const at::Tensor state = at::detail::getDefaultCPUGenerator().get_state();
  out.sum().backward();
  EXPECT_EQ(runs, 2);
  EXPECT_TRUE(linear->weight.grad().defined());
  EXPECT_TRUE(at::detail::getDefaultCPUGenerator().get_state().equal(state));
  const at::NoGradGuard no_grad;
  nn::ActivationCheckpoint([&](const at::Tensor& t) { return ++runs, t * 2; }, at::ones({1}));
  EXPECT_EQ(runs, 3);
}

TEST(ActivationCheckpoint, RestoresAutocast) {
  torch::nn::Linear linear(4, 4);
  const at::Tensor x = at::randn({3, 4});
  const auto block = [&](const at::Tensor& t) {
    const at::Tensor out = linear->forward(t);
    EXPECT_EQ(out.scalar_type(), at::kBFloat16);
    return out;
  };
  const auto under_autocast = [&](bool checkpoint) {
    return [&, checkpoint](at::Tensor t) {
      at::autocast::set_autocast_enabled(at::kCPU, true);
      at::autocast::set_autocast_dtype(at::kCPU, at::kBFloat16);
      // The second use finds no weight without gradients in the cache.
      const at::Tensor out = block(checkpoint ? nn::ActivationCheckpoint(block, t) : block(t));
      at::autocast::clear_cache();
      at::autocast::set_autocast_enabled(at::kCPU, false);
      return out.to(at::kFloat);
    };
  };
  // Without checkpoints the sum of both uses is rounded to bfloat16.
  const auto plain = Gradients(linear, x, under_autocast(false)),
             checkpointed = Gradients(linear, x, under_autocast(true));
  for (size_t i = 0; i < plain.size(); ++i) EXPECT_TRUE(at::allclose(plain[i], checkpointed[i], 2e-2, 2e-2)) << i;
  EXPECT_FALSE(at::autocast::is_autocast_enabled(at::kCPU));
}

TEST(ActivationCheckpoint, TakesAndGivesListsWithGapsAndIntegers) {
  at::Tensor x = at::ones({2}).requires_grad_();
  const auto out = nn::ActivationCheckpoint(
      [](const std::vector<at::Tensor>& in) {
        EXPECT_FALSE(in[1].defined());
        return std::vector<at::Tensor>{in[0] * in[2], in[2] + 1, at::Tensor(), in[0] * 5};
      },
      {x, at::Tensor(), at::full({2}, 3, at::kLong)});
  ASSERT_EQ(out.size(), 4u);
  EXPECT_FALSE(out[1].requires_grad());
  EXPECT_FALSE(out[2].defined());
  out[0].sum().backward();  // the last one gets no gradient
  EXPECT_TRUE(x.grad().equal(at::full({2}, 3.)));
}

TEST(ActivationCheckpoint, Nests) {
  torch::nn::Linear linear(4, 4);
  const at::Tensor x = at::randn({3, 4});
  const auto block = [&](const at::Tensor& t) { return at::tanh(linear->forward(t)); };
  ExpectSame(Gradients(linear, x, [&](at::Tensor t) { return block(block(t)); }),
             Gradients(linear, x, [&](at::Tensor t) {
               return nn::ActivationCheckpoint(
                   [&](const at::Tensor& u) { return nn::ActivationCheckpoint(block, block(u)); }, t);
             }));
}

TEST(ActivationCheckpoint, SaysWhatItCannot) {
  at::Tensor x = at::ones({2}).requires_grad_();
  const auto square = [](const at::Tensor& t) { return t * t; };
  EXPECT_THROW(torch::autograd::grad({nn::ActivationCheckpoint(square, x).sum()}, {x}), c10::Error);
  EXPECT_THROW(nn::ActivationCheckpoint(square, x).sum().backward({}, true, /*create_graph=*/true), c10::Error);
  EXPECT_THROW(nn::ActivationCheckpoint([](const at::Tensor&) -> at::Tensor { throw std::runtime_error("no"); }, x),
               std::runtime_error);
}

}  // namespace
}  // namespace lockstep
