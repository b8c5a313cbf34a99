#include "lockstep/metrics/gather_for_metrics.h"

#include <ATen/Functions.h>
#include <c10/util/Exception.h>
#include <gtest/gtest.h>

#include <vector>

#include "lockstep/comm/process_group.h"
#include "lockstep/samplers/distributed_sampler.h"

namespace lockstep {
namespace {

const ProcessGroupPtr& Group() {
  static const ProcessGroupPtr group = InitProcessGroup().value();
  return group;
}
int Rank() { return GetRank(Group()); }
int World() { return GetWorldSize(Group()); }

/// The output of sample i: (i, 10 i), and nothing but small whole numbers, so that every dtype has them.
at::Tensor OutputsOf(const at::Tensor& indices, at::ScalarType dtype = at::kFloat) {
  return at::stack({indices, indices * 10}, 1).remainder(7).to(dtype);
}

void ExpectWhole(const at::Tensor& indices, int64_t n, at::ScalarType dtype = at::kFloat) {
  const GatheredOutputs all = GatherForMetrics(OutputsOf(indices, dtype), indices, Group());
  EXPECT_TRUE(all.indices.equal(at::arange(n, at::kLong)));
  ASSERT_EQ(all.outputs.scalar_type(), dtype);
  EXPECT_TRUE(all.outputs.equal(OutputsOf(at::arange(n, at::kLong), dtype)));
}

TEST(GatherForMetrics, GivesEachSampleOnceInTheDataSetsOrderForEverySampler) {
  for (const int64_t n : {1, 2, 5, 30, 101}) {
    for (const bool pad : {true, false}) {
      DistributedSampler sampler(n, World(), Rank(), {/*shuffle=*/true, /*seed=*/3, /*drop_last=*/false, pad});
      std::vector<int64_t> mine;
      while (const auto some = sampler.next(4)) mine.insert(mine.end(), some->begin(), some->end());
      for (const at::ScalarType dtype : {at::kFloat, at::kHalf, at::kLong, at::kBool, at::kComplexDouble}) {
        ExpectWhole(at::tensor(mine, at::kLong), n, dtype);
      }
    }
  }
}

TEST(GatherForMetrics, RanksMayDifferByAnyNumberAlsoNone) {
  for (int whose = 0; whose < World(); ++whose) {
    ExpectWhole(at::arange(Rank() == whose ? 50 : 0, at::kLong), 50);
    // Rank r has the numbers from r² on that are below (r + 1)².
    ExpectWhole(at::arange(Rank() * Rank(), (Rank() + 1) * (Rank() + 1), at::kLong), World() * World());
  }
}

TEST(GatherForMetrics, ARankWithoutSamplesNeedsToKnowNoShape) {
  const bool has = Rank() == World() - 1;
  for (const at::Tensor& nothing : {at::Tensor(), at::empty({0}, at::kInt)}) {
    const auto all = GatherForMetrics(has ? at::ones({2, 3, 1}) : nothing,
                                      has ? at::tensor({7, 4}, at::kLong) : at::Tensor(), Group());
    EXPECT_TRUE(all.indices.equal(at::tensor({4, 7}, at::kLong)));
    EXPECT_TRUE(all.outputs.equal(at::ones({2, 3, 1})));
  }
  const auto none = GatherForMetrics(at::empty({0, 3}), at::empty({0}, at::kLong), Group());
  EXPECT_EQ(none.indices.numel(), 0);
  EXPECT_EQ(none.outputs.sizes(), (at::IntArrayRef{0, 3}));
  EXPECT_EQ(GatherForMetrics(at::Tensor(), at::Tensor(), Group()).outputs.numel(), 0);
}

TEST(GatherForMetrics, OfDuplicatesTheLowestRanksFirstRowCounts) {
  const at::Tensor mine = at::full({2}, 10. * Rank()) + at::arange(2);
  const auto all = GatherForMetrics(mine.requires_grad_(), at::tensor({3, 3}, at::kLong), Group());
  EXPECT_EQ(all.outputs.numel(), 1);
  EXPECT_EQ(all.outputs.item<double>(), 0);
  EXPECT_FALSE(all.outputs.requires_grad());
}

TEST(GatherForMetrics, TakesOutputsThatAreNotContiguousAndOnesWithoutNumbers) {
  const at::Tensor indices = at::arange(Rank(), 10, World(), at::kLong);
  const at::Tensor rows = OutputsOf(indices).t().contiguous().t();
  EXPECT_TRUE(GatherForMetrics(rows, indices, Group()).outputs.equal(OutputsOf(at::arange(10, at::kLong))));
  EXPECT_EQ(GatherForMetrics(at::empty({indices.numel(), 0}), indices, Group()).outputs.sizes(),
            (at::IntArrayRef{10, 0}));
}

/// What all ranks throw; `bad` is rank 0's part, the others have something good.
std::string ErrorOf(const at::Tensor& outputs, const at::Tensor& indices) {
  try {
    const bool bad = Rank() == 0;
    GatherForMetrics(bad ? outputs : at::ones({2, 3}), bad ? indices : at::arange(2, at::kLong), Group());
  } catch (const c10::Error& error) {
    return error.what_without_backtrace();
  }
  return "";
}

TEST(GatherForMetrics, WhatOneRankDoesWrongAllRanksThrow) {
  const auto has = [](const std::string& text, const std::string& part) {
    return text.find(part) != std::string::npos;
  };
  const at::Tensor two = at::arange(2, at::kLong);
  EXPECT_TRUE(has(ErrorOf(at::ones({3, 3}), two), "outputs of 3 samples, but 2 indices"));
  EXPECT_TRUE(has(ErrorOf(at::ones({2, 3}), at::arange(2, at::kInt)), "int64"));
  EXPECT_TRUE(has(ErrorOf(at::ones({2, 3}), at::tensor({0, -1}, at::kLong)), "negative"));
  EXPECT_TRUE(has(ErrorOf(at::ones({}), two), "first dimension"));
  EXPECT_TRUE(has(ErrorOf(at::Tensor(), two), "outputs of 0 samples"));
  if (World() == 1) return;
  EXPECT_TRUE(has(ErrorOf(at::ones({2, 4}), two), "rows of shape [3], another one Float rows of shape [4]"));
  EXPECT_TRUE(has(ErrorOf(at::ones({2, 3}, at::kDouble), two), "Float rows of shape [3], another one Double"));
}

}  // namespace
}  // namespace lockstep
