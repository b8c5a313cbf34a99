#include "lockstep/nn/batch_norm.h"

#include <ATen/Functions.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>

namespace lockstep {
namespace {

using Options = torch::nn::BatchNormOptions;

/// Trains both for three batches and evaluates one.
template <typename Ours, typename Torchs>
void ExpectSame(const Options& options, const std::vector<int64_t>& shape) {
  Ours ours(options);
  Torchs torchs(options);
  ASSERT_EQ(ours->named_parameters().keys(), torchs->named_parameters().keys());
  ASSERT_EQ(ours->named_buffers().keys(), torchs->named_buffers().keys());
  for (int i = 0; i < 4; ++i) {
    ours->train(i < 3);
    torchs->train(i < 3);
    const at::Tensor input = at::randn(shape);
    EXPECT_TRUE(ours->forward(input).equal(torchs->forward(input)));
  }
  if (options.track_running_stats()) {
    EXPECT_TRUE(ours->running_mean.equal(torchs->running_mean));
    EXPECT_TRUE(ours->running_var.equal(torchs->running_var));
    EXPECT_TRUE(ours->num_batches_tracked.equal(torchs->num_batches_tracked));
  }
}

TEST(BatchNorm, BehavesLikeTorchs) {
  ExpectSame<nn::BatchNorm1d, torch::nn::BatchNorm1d>(Options(3), {8, 3});
  ExpectSame<nn::BatchNorm1d, torch::nn::BatchNorm1d>(Options(3).eps(1e-3), {8, 3, 5});
  ExpectSame<nn::BatchNorm2d, torch::nn::BatchNorm2d>(Options(3).momentum(0.3), {8, 3, 5, 4});
  ExpectSame<nn::BatchNorm2d, torch::nn::BatchNorm2d>(Options(3).momentum(std::nullopt), {8, 3, 5, 4});
  ExpectSame<nn::BatchNorm2d, torch::nn::BatchNorm2d>(Options(3).affine(false), {8, 3, 5, 4});
  ExpectSame<nn::BatchNorm2d, torch::nn::BatchNorm2d>(Options(3).track_running_stats(false), {8, 3, 5, 4});
  ExpectSame<nn::BatchNorm3d, torch::nn::BatchNorm3d>(Options(3), {2, 3, 4, 5, 6});
}

TEST(BatchNorm, RefusesOtherShapes) {
  EXPECT_THROW(nn::BatchNorm2d(3)->forward(at::rand({2, 3})), c10::Error);
  EXPECT_THROW(nn::BatchNorm2d(3)->forward(at::rand({2, 4, 2, 2})), c10::Error);
  EXPECT_THROW(nn::BatchNorm1d(3)->forward(at::rand({2, 3, 2, 2})), c10::Error);
}

template <typename Norm>
struct NestedImpl : torch::nn::Module {
  NestedImpl()
      : first(register_module("first", nn::BatchNorm1d(3))),
        rest(register_module("rest", torch::nn::Sequential(torch::nn::Linear(3, 3), Norm(3)))) {}
  nn::BatchNorm1d first;
  torch::nn::Sequential rest;
};

TEST(ConvertSyncBatchNorm, CountsAndNamesTorchsOwn) {
  NestedImpl<nn::BatchNorm1d> good;
  const auto bound = nn::ConvertSyncBatchNorm(good, nullptr);
  ASSERT_TRUE(bound.ok());
  EXPECT_EQ(*bound, 2);
  NestedImpl<torch::nn::BatchNorm1d> bad;
  const auto refused = nn::ConvertSyncBatchNorm(bad, nullptr);
  ASSERT_FALSE(refused.ok());
  EXPECT_NE(refused.status().message().find("'rest.1'"), std::string::npos) << refused.status();
}

TEST(BatchNorm, CanBeCloned) {
  nn::BatchNorm2d a(3);
  const auto copy = a->clone();
  EXPECT_EQ(copy->parameters().size(), 2u);
  EXPECT_FALSE(copy->parameters()[0].is_same(a->parameters()[0]));
}

}  // namespace
}  // namespace lockstep
