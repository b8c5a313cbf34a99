#include "lockstep/comm/ring/ring_all_reduce.h"

#include <ATen/Functions.h>
#include <gtest/gtest.h>

#include <vector>

#include "lockstep/comm/process_group.h"

namespace lockstep {
namespace {

const ProcessGroupPtr& Group() {
  static const ProcessGroupPtr group = InitProcessGroup().value();
  return group;
}
int Rank() { return GetRank(Group()); }
int World() { return GetWorldSize(Group()); }

/// Element i of rank r is (r + 1) (i + 1), so that the sum is (1 + … + N) (i + 1).
at::Tensor Mine(int64_t n, at::ScalarType dtype) { return (at::arange(1, n + 1) * (Rank() + 1)).to(dtype); }
at::Tensor Sum(int64_t n, at::ScalarType dtype) {
  return (at::arange(1, n + 1) * (World() * (World() + 1) / 2)).to(dtype);
}

TEST(RingAllReduce, SumsAnyLengthAndDtype) {
  for (int64_t n : {0, 1, 2, 3, 4, 5, 7, 64, 1001}) {
    for (at::ScalarType dtype : {at::kFloat, at::kDouble, at::kLong, at::kInt}) {
      at::Tensor ring = Mine(n, dtype), naive = Mine(n, dtype);
      RingAllReduce(ring, Group());
      NaiveAllReduce(naive, Group());
      EXPECT_TRUE(ring.equal(Sum(n, dtype))) << n << " elements of " << dtype;
      EXPECT_TRUE(naive.equal(Sum(n, dtype))) << n << " elements of " << dtype;
    }
  }
}

TEST(RingAllReduce, SumsTensorsThatAreNotContiguous) {
  at::Tensor t = Mine(12, at::kDouble).view({3, 4}).t();
  RingAllReduce(t, Group());
  EXPECT_TRUE(t.equal(Sum(12, at::kDouble).view({3, 4}).t()));
}

TEST(RingAllReduce, FollowsTheFormula) {
  const int n = World(), r = Rank();
  std::vector<RingStep> steps;
  at::Tensor t = Mine(24, at::kLong);
  RingAllReduce(t, Group(), [&](const RingStep& step) {
    steps.push_back(step);
    if (step.phase == RingStep::Phase::kReduceScatter && step.step == n - 2) {
      EXPECT_TRUE(RingBlock(t, r, n).equal(RingBlock(Sum(24, at::kLong), r, n))) << "block r is fully summed";
    }
  });
  ASSERT_EQ(steps.size(), static_cast<size_t>(2 * (n - 1)));
  for (int s = 0; s < n - 1; ++s) {
    EXPECT_EQ(steps[s].sent_block, (r - 1 - s + 2 * n) % n);
    EXPECT_EQ(steps[s].received_block, (r - 2 - s + 2 * n) % n);
    EXPECT_EQ(steps[n - 1 + s].sent_block, (r - s + n) % n);
    EXPECT_EQ(steps[n - 1 + s].received_block, (r - 1 - s + 2 * n) % n);
  }
}

TEST(RingAllReduce, SendsTwiceNMinusOneByNOfTheBytes) {
  const int64_t n = World(), elements = 120 * n;
  at::Tensor t = Mine(elements, at::kFloat);
  const Traffic ring = RingAllReduce(t, Group());
  EXPECT_EQ(ring.bytes_sent, 2 * (n - 1) * 120 * 4);
  EXPECT_EQ(ring.bytes_received, ring.bytes_sent);
  const Traffic naive = NaiveAllReduce(t, Group());
  EXPECT_EQ(naive.bytes_sent, n == 1 ? 0 : (Rank() == 0 ? n - 1 : 1) * elements * 4);
}

}  // namespace
}  // namespace lockstep
