#include "lockstep/comm/turns.h"

#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include <stdexcept>
#include <string>
#include <vector>

#include "lockstep/comm/collectives.h"
#include "lockstep/comm/differentiable.h"
#include "lockstep/comm/process_group.h"
#include "lockstep/comm/texts.h"

namespace lockstep {
namespace {

const ProcessGroupPtr& Group() {
  static const ProcessGroupPtr group = InitProcessGroup().value();
  return group;
}
int Rank() { return GetRank(Group()); }
int World() { return GetWorldSize(Group()); }

std::string TextOf(int rank) { return std::string(rank * 1000, 'x') + std::string("\0end", 4) + std::to_string(rank); }

TEST(Texts, OfAnyBytesAndLengths) {
  EXPECT_EQ(BroadcastString(TextOf(Rank()), Group(), World() - 1), TextOf(World() - 1));
  EXPECT_EQ(BroadcastString(Rank() == 0 ? "" : "else", Group()), "");
  const auto gathered = GatherString(TextOf(Rank()), Group(), World() - 1);
  ASSERT_EQ(gathered.size(), Rank() == World() - 1 ? static_cast<size_t>(World()) : 0u);
  for (size_t r = 0; r < gathered.size(); ++r) EXPECT_EQ(gathered[r], TextOf(static_cast<int>(r)));
  std::vector<std::string> texts;
  for (int r = 0; r < World(); ++r) texts.push_back(TextOf(r));
  EXPECT_EQ(AllGatherString(TextOf(Rank()), Group()), texts);
  EXPECT_EQ(ScatterString(Rank() == 0 ? texts : std::vector<std::string>(), Group()), TextOf(Rank()));
}

TEST(Turns, RankZeroAloneAndItsExceptionOnAll) {
  int calls = 0;
  OnRankZero([&] { ++calls; }, Group());
  EXPECT_EQ(calls, Rank() == 0 ? 1 : 0);
  try {
    OnRankZero([] { throw std::runtime_error("the disk is full"); }, Group());
    FAIL() << "no exception";
  } catch (const std::exception& e) {
    EXPECT_NE(std::string(e.what()).find("the disk is full"), std::string::npos) << e.what();
  }
}

TEST(Turns, LocalRankZeroFirst) {
  // As on hosts of two ranks each: the even ranks are the first of theirs.
  const int local_rank = Rank() % 2;
  bool called = false;
  LocalRankFirst([&] { called = true; }, Group(), local_rank);
  EXPECT_TRUE(called);
  // What a first one throws, all throw, and nobody has the second turn.
  called = false;
  try {
    LocalRankFirst(
        [&] {
          called = true;
          throw std::runtime_error("no cache");
        },
        Group(), local_rank);
    FAIL() << "no exception";
  } catch (const std::exception& e) {
    EXPECT_NE(std::string(e.what()).find("no cache"), std::string::npos) << e.what();
    EXPECT_EQ(called, local_rank == 0);
  }
}

TEST(Differentiable, AllReduceGivesEachRankTheSumOfTheGradients) {
  at::Tensor x = at::full({3}, Rank() + 1.0).requires_grad_();
  const at::Tensor sum = DifferentiableAllReduce(x * 2, Group());
  EXPECT_TRUE(sum.eq(World() * (World() + 1)).all().item<bool>());
  // The loss of rank r is (r + 1) · sum, so that d/dx of all losses is 2 (1 + … + N).
  torch::autograd::backward({(sum * (Rank() + 1)).sum()});
  EXPECT_TRUE(x.grad().eq(World() * (World() + 1)).all().item<bool>()) << x.grad();
}

TEST(Differentiable, SecondDerivatives) {
  // f = Σ_ranks (Σ_r x_r)³ / N, on each rank; df/dx_r = 3 s² and d²f = 6 s · N where every rank asks for it.
  at::Tensor x = at::full({1}, Rank() + 1.0).requires_grad_();
  const at::Tensor s = DifferentiableAllReduce(x, Group());
  const double sum = World() * (World() + 1) / 2.0;
  const auto first = torch::autograd::grad({s.pow(3).sum() / World()}, {x}, {}, true, /*create_graph=*/true)[0];
  EXPECT_NEAR(first.item<double>(), 3 * sum * sum, 1e-3);
  const auto second = torch::autograd::grad({first.sum()}, {x})[0];
  EXPECT_NEAR(second.item<double>(), 6 * sum * World(), 1e-2);
}

TEST(Differentiable, AllGatherGivesEachRankItsPart) {
  at::Tensor x = at::full({2, 3}, Rank() + 1.0).t().requires_grad_();
  const at::Tensor all = DifferentiableAllGather(x, Group());
  ASSERT_EQ(all.sizes().vec(), (std::vector<int64_t>{World(), 3, 2}));
  for (int r = 0; r < World(); ++r) EXPECT_TRUE(all[r].eq(r + 1).all().item<bool>());
  // The loss of rank q is Σ_r (q + 1) (r + 1) x_r: d/dx_r of all losses is (r + 1) (1 + … + N).
  at::Tensor weights = at::arange(1, World() + 1).to(at::kFloat).view({World(), 1, 1});
  torch::autograd::backward({(all * weights * (Rank() + 1)).sum()});
  EXPECT_TRUE(x.grad().eq((Rank() + 1) * World() * (World() + 1) / 2).all().item<bool>()) << x.grad();
}

}  // namespace
}  // namespace lockstep
