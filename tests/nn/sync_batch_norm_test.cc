#include <ATen/Functions.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/utils.h>

#include "lockstep/comm/process_group.h"
#include "lockstep/nn/batch_norm.h"

namespace lockstep {
namespace {

const ProcessGroupPtr& Group() {
  static const ProcessGroupPtr group = InitProcessGroup().value();
  return group;
}

struct Case {
  std::vector<int64_t> per_rank;  ///< Samples of rank 0, 1, …, repeated.
  bool affine = true, track = true, channels_last = false;
  std::optional<double> momentum = 0.1;
  at::ScalarType dtype = at::kDouble;
  double tolerance = 1e-10;
};

/// The ranks' batches together give what torch's batch norm gives for one batch of all samples.
void Check(const Case& c) {
  const int rank = GetRank(Group()), world = GetWorldSize(Group());
  torch::manual_seed(1206);  // the same data on all ranks
  auto options = torch::nn::BatchNormOptions(3).affine(c.affine).track_running_stats(c.track).momentum(c.momentum);
  nn::BatchNorm2d ours(options);
  torch::nn::BatchNorm2d whole(options);
  ours->to(c.dtype == at::kDouble ? at::kDouble : at::kFloat);
  whole->to(at::kDouble);
  if (c.affine) {
    const at::NoGradGuard no_grad;
    whole->weight.copy_(at::randn({3}));
    whole->bias.copy_(at::randn({3}));
    ours->weight.copy_(whole->weight);
    ours->bias.copy_(whole->bias);
  }
  ASSERT_EQ(*nn::ConvertSyncBatchNorm(*ours, Group()), 1);
  for (int step = 0; step < 3; ++step) {
    int64_t begin = 0, total = 0, mine = 0;
    for (int r = 0; r < world; ++r) {
      const int64_t n = c.per_rank[r % c.per_rank.size()];
      if (r == rank) {
        begin = total;
        mine = n;
      }
      total += n;
    }
    at::Tensor all = (at::randn({total, 3, 4, 5}, at::kDouble) * 2 + 5).to(c.dtype).to(at::kDouble);
    at::Tensor grad = at::randn({total, 3, 4, 5}, at::kDouble).to(c.dtype).to(at::kDouble);
    at::Tensor part = all.narrow(0, begin, mine).to(c.dtype).clone();
    if (c.channels_last) part = part.contiguous(at::MemoryFormat::ChannelsLast);
    part.requires_grad_();
    all.requires_grad_();
    const at::Tensor out = ours->forward(part), expected = whole->forward(all);
    EXPECT_TRUE(at::allclose(out.to(at::kDouble), expected.narrow(0, begin, mine), c.tolerance, c.tolerance));
    ours->zero_grad();
    whole->zero_grad();
    out.backward(grad.narrow(0, begin, mine).to(c.dtype));
    expected.backward(grad);
    EXPECT_TRUE(at::allclose(part.grad().to(at::kDouble), all.grad().narrow(0, begin, mine), c.tolerance, c.tolerance));
    if (c.affine) {
      at::Tensor weight_grad = ours->weight.grad().to(at::kDouble).clone();
      AllReduce(weight_grad, Group());
      EXPECT_TRUE(at::allclose(weight_grad, whole->weight.grad(), c.tolerance * 100, c.tolerance * 100));
      at::Tensor bias_grad = ours->bias.grad().to(at::kDouble).clone();
      AllReduce(bias_grad, Group());
      EXPECT_TRUE(at::allclose(bias_grad, whole->bias.grad(), c.tolerance * 100, c.tolerance * 100));
    }
  }
  if (c.track) {
    EXPECT_TRUE(at::allclose(ours->running_mean.to(at::kDouble), whole->running_mean, c.tolerance, c.tolerance));
    EXPECT_TRUE(at::allclose(ours->running_var.to(at::kDouble), whole->running_var, c.tolerance, c.tolerance));
    EXPECT_EQ(ours->num_batches_tracked.item<int64_t>(), 3);
  }
  // Evaluation speaks to nobody: one rank alone may run it.
  if (rank == 0) {
    ours->eval();
    whole->eval();
    const at::Tensor x = at::randn({2, 3, 2, 2}, at::kDouble).to(c.dtype);
    EXPECT_TRUE(
        at::allclose(ours->forward(x).to(at::kDouble), whole->forward(x.to(at::kDouble)), c.tolerance, c.tolerance));
  }
}

TEST(SyncBatchNorm, EqualsOneBatchOfAllSamples) { Check({{6}}); }
TEST(SyncBatchNorm, TakesUnequalBatches) { Check({{6, 1, 3}}); }
TEST(SyncBatchNorm, TakesOneSamplePerRank) { Check({{1}}); }
TEST(SyncBatchNorm, TakesAnEmptyBatch) { Check({{4, 0}}); }
TEST(SyncBatchNorm, TakesChannelsLast) { Check({{3, 2}, true, true, true}); }
TEST(SyncBatchNorm, WithoutAffine) { Check({{3}, false}); }
TEST(SyncBatchNorm, WithoutRunningStatistics) { Check({{3}, true, false}); }
TEST(SyncBatchNorm, WithoutMomentum) { Check({{3, 4}, true, true, false, std::nullopt}); }
TEST(SyncBatchNorm, InFloat) { Check({{8}, true, true, false, 0.1, at::kFloat, 1e-4}); }
TEST(SyncBatchNorm, InHalf) { Check({{8}, true, true, false, 0.1, at::kHalf, 2e-2}); }
TEST(SyncBatchNorm, OverASubGroup) {
  if (GetWorldSize(Group()) < 4) return;
  const int parity = GetRank(Group()) % 2;
  const auto sub = NewSubGroup(Group(), {parity, parity + 2}).value();
  const auto input = [](int rank) { return at::sin(at::arange(24., at::kDouble).view({4, 6}) * (rank + 1)); };
  nn::BatchNorm1d ours(6);
  torch::nn::BatchNorm1d whole(6);
  ours->to(at::kDouble);
  whole->to(at::kDouble);
  ASSERT_EQ(*nn::ConvertSyncBatchNorm(*ours, sub), 1);
  const at::Tensor out = ours->forward(input(GetRank(Group())));
  const at::Tensor expected = whole->forward(at::cat({input(parity), input(parity + 2)}));
  EXPECT_TRUE(at::allclose(out, expected.narrow(0, GetRank(sub) * 4, 4)));
  EXPECT_TRUE(at::allclose(ours->running_var, whole->running_var));
}
TEST(SyncBatchNorm, InBfloat16) { Check({{8}, true, true, false, 0.1, at::kBFloat16, 5e-2}); }

}  // namespace
}  // namespace lockstep
