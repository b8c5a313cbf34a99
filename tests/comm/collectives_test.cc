#include "lockstep/comm/collectives.h"

#include <ATen/Functions.h>
#include <c10/util/Exception.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <string>
#include <thread>
#include <vector>

#include "lockstep/comm/definedness.h"
#include "lockstep/comm/process_group.h"

namespace lockstep {
namespace {

/// Of each backend, once for all tests.
const ProcessGroupPtr& Group(const std::string& backend) {
  static std::map<std::string, ProcessGroupPtr> groups;
  const auto found = groups.find(backend);
  if (found != groups.end()) return found->second;
  static const ProcessGroupPtr world = InitProcessGroup().value();
  std::vector<int> all;
  for (int rank = 0; rank < GetWorldSize(world); ++rank) all.push_back(rank);
  ProcessGroupOptions options;
  options.backend = backend;
  return groups[backend] = NewSubGroup(world, all, options).value();
}

const std::vector<at::ScalarType> kDtypes = {at::kBool,   at::kByte,         at::kChar,          at::kShort,
                                             at::kInt,    at::kLong,         at::kUInt16,        at::kUInt32,
                                             at::kUInt64, at::kHalf,         at::kBFloat16,      at::kFloat,
                                             at::kDouble, at::kComplexFloat, at::kComplexDouble, at::kFloat8_e5m2};
const std::vector<Reduction> kReductions = {c10d::ReduceOp::SUM, c10d::ReduceOp::AVG, c10d::ReduceOp::PRODUCT,
                                            c10d::ReduceOp::MIN, c10d::ReduceOp::MAX, c10d::ReduceOp::BAND,
                                            c10d::ReduceOp::BOR, c10d::ReduceOp::BXOR};

class EachBackend : public testing::TestWithParam<std::string> {
 protected:
  const ProcessGroupPtr& group() { return Group(GetParam()); }
  int rank() { return GetRank(group()); }
  int world() { return GetWorldSize(group()); }
  /// What a world of one defines is what shm does.
  std::string name() { return world() == 1 ? "none" : GetParam(); }

  /// Element i of rank r: small whole numbers, exact in every dtype, different in each rank and place.
  static double Value(int r, int64_t i) { return static_cast<double>((r * 3 + i) % 5); }
  at::Tensor Make(int r, int64_t n, at::ScalarType dtype) {
    std::vector<double> values;
    for (int64_t i = 0; i < n; ++i) values.push_back(Value(r, i));
    return at::tensor(values, at::kDouble).to(dtype);
  }
  static bool Equal(const at::Tensor& a, const at::Tensor& b) {
    // LibTorch has no comparison for all dtypes; the bits are ours to compare.
    return a.scalar_type() == b.scalar_type() && a.sizes() == b.sizes() &&
           a.contiguous().view({-1}).view(at::kByte).equal(b.contiguous().view({-1}).view(at::kByte));
  }

  /// An average may be a multiplication by a rounded 1 ÷ N, and half types are rounded.
  static bool Matches(Reduction reduction, const at::Tensor& a, const at::Tensor& b) {
    if (reduction != c10d::ReduceOp::AVG) return Equal(a, b);
    const double tolerance = a.scalar_type() == at::kBFloat16 ? 1e-2 : a.scalar_type() == at::kHalf ? 1e-3 : 1e-6;
    return a.scalar_type() == b.scalar_type() &&
           at::allclose(a.to(at::kComplexDouble), b.to(at::kComplexDouble), tolerance);
  }

  /// By hand, one element at a time.
  at::Tensor Expected(Reduction reduction, int64_t n, at::ScalarType dtype) {
    std::vector<double> values;
    for (int64_t i = 0; i < n; ++i) {
      const auto value = [&](int r) { return dtype == at::kBool ? (Value(r, i) != 0 ? 1.0 : 0.0) : Value(r, i); };
      double result = value(0);
      for (int r = 1; r < world(); ++r) {
        const double other = value(r);
        const auto a = static_cast<int64_t>(result), b = static_cast<int64_t>(other);
        switch (reduction) {
          case c10d::ReduceOp::SUM:
          case c10d::ReduceOp::AVG: result += other; break;
          case c10d::ReduceOp::PRODUCT: result *= other; break;
          case c10d::ReduceOp::MIN: result = std::min(result, other); break;
          case c10d::ReduceOp::MAX: result = std::max(result, other); break;
          case c10d::ReduceOp::BAND: result = static_cast<double>(a & b); break;
          case c10d::ReduceOp::BOR: result = static_cast<double>(a | b); break;
          default: result = static_cast<double>(a ^ b);
        }
      }
      if (reduction == c10d::ReduceOp::AVG) result /= world();
      values.push_back(result);
    }
    return at::tensor(values, at::kDouble).to(dtype);
  }

  /// The error of a combination that isn't defined.
  template <typename Call>
  void ExpectUndefined(const std::string& what, const Call& call) {
    try {
      call();
      ADD_FAILURE() << what << " passed on " << name();
    } catch (const c10::Error& e) {
      const std::string text = e.what_without_backtrace();
      EXPECT_NE(text.find(what), std::string::npos) << text;
      EXPECT_NE(text.find("is not defined on backend " + name()), std::string::npos) << text;
    }
  }

  std::string Describe(Reduction reduction, at::ScalarType dtype, int64_t n) {
    return std::string(ReductionName(reduction)) + " of " + c10::toString(dtype) + ", " + std::to_string(n) +
           " elements, " + name();
  }
};

// Lengths around the width of the vectors; the last ones take several pieces, or don't on shared memory.
const std::vector<int64_t> kLengths = {0, 1, 7, 16, 1001, 120001};

TEST_P(EachBackend, AllReduceReduceAndReduceScatterOfEveryDefinedCombination) {
  for (at::ScalarType dtype : kDtypes) {
    for (Reduction reduction : kReductions) {
      const std::string what = std::string(ReductionName(reduction)) + " of " + c10::toString(dtype);
      if (!IsReductionDefined(name(), reduction, dtype)) {
        at::Tensor t = Make(rank(), 4, dtype), all = Make(rank(), 4 * world(), dtype);
        ExpectUndefined("all-reduce: " + what, [&] { AllReduce(t, group(), reduction); });
        ExpectUndefined("reduce: " + what, [&] { Reduce(t, group(), 0, reduction); });
        ExpectUndefined("reduce-scatter: " + what, [&] { ReduceScatter(t, all, group(), reduction); });
        continue;
      }
      for (int64_t n : kLengths) {
        SCOPED_TRACE(Describe(reduction, dtype, n));
        const at::Tensor expected = Expected(reduction, n, dtype);
        at::Tensor t = Make(rank(), n, dtype);
        AllReduce(t, group(), reduction);
        EXPECT_TRUE(Matches(reduction, t, expected)) << "all-reduce";
        const int root = static_cast<int>(n) % world();
        t = Make(rank(), n, dtype);
        Reduce(t, group(), root, reduction);
        EXPECT_TRUE(rank() != root || Matches(reduction, t, expected)) << "reduce";
        // Rank q's part is the whole of the above, so that one expectation serves.
        if (n > 2000 && dtype != at::kFloat) continue;
        std::vector<at::Tensor> parts;
        for (int q = 0; q < world(); ++q) parts.push_back(Make(rank(), n, dtype));
        at::Tensor mine = at::zeros({n}, dtype);
        ReduceScatter(mine, at::cat(parts), group(), reduction);
        EXPECT_TRUE(Matches(reduction, mine, expected)) << "reduce-scatter";
      }
    }
  }
}

TEST_P(EachBackend, MovesEveryDefinedDtype) {
  for (at::ScalarType dtype : kDtypes) {
    if (!IsMovable(name(), dtype)) {
      at::Tensor t = Make(rank(), 4, dtype);
      const std::string what = c10::toString(dtype);
      ExpectUndefined("broadcast: " + what, [&] { Broadcast(t, group()); });
      ExpectUndefined("all-gather: " + what, [&] { AllGather(t, group()); });
      ExpectUndefined("gather: " + what, [&] { Gather(t, group()); });
      ExpectUndefined("all-to-all: " + what, [&] { AllToAll(t, t, group()); });
      continue;
    }
    for (int64_t n : kLengths) {
      SCOPED_TRACE(Describe(c10d::ReduceOp::UNUSED, dtype, n));
      const int root = static_cast<int>(n) % world();
      at::Tensor t = Make(rank(), n, dtype);
      Broadcast(t, group(), root);
      EXPECT_TRUE(Equal(t, Make(root, n, dtype))) << "broadcast";

      const at::Tensor mine = Make(rank(), n, dtype);
      std::vector<at::Tensor> everyone;
      for (int r = 0; r < world(); ++r) everyone.push_back(Make(r, n, dtype));
      const auto gathered = AllGather(mine, group());
      ASSERT_EQ(gathered.size(), everyone.size());
      for (int r = 0; r < world(); ++r) EXPECT_TRUE(Equal(gathered[r], everyone[r])) << "all-gather from " << r;

      at::Tensor into = at::empty({n * world()}, mine.options());
      AllGatherInto(into, mine, group());
      EXPECT_TRUE(Equal(into, at::cat(everyone))) << "all-gather into one";

      const auto at_root = Gather(mine, group(), root);
      ASSERT_EQ(at_root.size(), rank() == root ? everyone.size() : 0u);
      for (size_t r = 0; r < at_root.size(); ++r) EXPECT_TRUE(Equal(at_root[r], everyone[r])) << "gather from " << r;

      at::Tensor part = at::zeros({n}, dtype);
      Scatter(part, rank() == root ? everyone : std::vector<at::Tensor>(), group(), root);
      EXPECT_TRUE(Equal(part, mine)) << "scatter";

      // Rank r sends block q, which is Make(r + q), to rank q.
      std::vector<at::Tensor> send, want;
      for (int q = 0; q < world(); ++q) send.push_back(Make(rank() + q, n, dtype));
      for (int r = 0; r < world(); ++r) want.push_back(Make(r + rank(), n, dtype));
      at::Tensor received = at::empty({n * world()}, mine.options());
      AllToAll(received, at::cat(send), group());
      EXPECT_TRUE(Equal(received, at::cat(want))) << "all-to-all";
    }
  }
}

TEST_P(EachBackend, AllToAllWithUnequalSplits) {
  // Rank r sends r + q rows to rank q; some send and receive none at all.
  std::vector<int64_t> give, take;
  std::vector<at::Tensor> send, want;
  for (int q = 0; q < world(); ++q) {
    give.push_back(rank() * q);
    take.push_back(q * rank());
    send.push_back(at::full({rank() * q, 3}, rank() * 10.0 + q));
    want.push_back(at::full({q * rank(), 3}, q * 10.0 + rank()));
  }
  const at::Tensor input = at::cat(send), expected = at::cat(want);
  at::Tensor output = at::zeros_like(expected);
  AllToAll(output, input, group(), take, give);
  EXPECT_TRUE(output.equal(expected));
}

TEST_P(EachBackend, AllToAllOfLargeUnequalSplits) {
  std::vector<int64_t> give(world(), 0), take(world(), 0);
  // Everyone sends all to rank 0.
  give[0] = 50000;
  if (rank() == 0) take.assign(world(), 50000);
  const at::Tensor input = at::full({50000, 2}, rank() + 1.0);
  at::Tensor output = at::zeros({rank() == 0 ? 50000 * world() : 0, 2});
  AllToAll(output, input, group(), take, give);
  for (int r = 0; r < world() && rank() == 0; ++r) {
    EXPECT_TRUE(output.narrow(0, r * 50000, 50000).eq(r + 1.0).all().item<bool>()) << r;
  }
}

TEST_P(EachBackend, TensorsThatAreNotContiguous) {
  const at::Tensor mine = Make(rank(), 12, at::kFloat).view({3, 4}).t();
  at::Tensor t = Make(rank(), 12, at::kFloat).view({3, 4}).t();
  AllReduce(t, group());
  EXPECT_TRUE(t.equal(Expected(c10d::ReduceOp::SUM, 12, at::kFloat).view({3, 4}).t()));
  t = Make(rank(), 12, at::kFloat).view({3, 4}).t();
  Broadcast(t, group(), world() - 1);
  EXPECT_TRUE(t.equal(Make(world() - 1, 12, at::kFloat).view({3, 4}).t()));
  const auto gathered = AllGather(mine, group());
  EXPECT_TRUE(gathered[0].equal(Make(0, 12, at::kFloat).view({3, 4}).t()));
  // Into every second column of something larger.
  at::Tensor wide = at::zeros({world() * 4, 6});
  at::Tensor output = wide.slice(1, 0, 6, 2);
  AllGatherInto(output, mine, group());
  EXPECT_TRUE(output.narrow(0, 0, 4).equal(gathered[0]));
  EXPECT_EQ(wide.slice(1, 1, 6, 2).count_nonzero().item<int64_t>(), 0);
  at::Tensor expanded = at::full({1}, rank() + 1.0).expand({4}).contiguous().view({2, 2}).t();
  AllReduce(expanded, group(), c10d::ReduceOp::MAX);
  EXPECT_TRUE(expanded.eq(world()).all().item<bool>());
}

TEST_P(EachBackend, AnyShapesOfTheRightNumberOfElements) {
  // 0-dimensional, stacked and concatenated.
  const at::Tensor scalar = at::full({}, rank() + 1.0);
  at::Tensor all = at::zeros({world()});
  AllGatherInto(all, scalar, group());
  EXPECT_TRUE(all.equal(at::arange(1, world() + 1).to(at::kFloat)));
  at::Tensor sum = at::zeros({});
  ReduceScatter(sum, at::ones({world()}), group());
  EXPECT_EQ(sum.item<float>(), world());
  at::Tensor stacked = at::zeros({world(), 2, 2}), rows = at::zeros({2 * world(), 2});
  const at::Tensor square = at::full({2, 2}, rank() + 1.0);
  AllGatherInto(stacked, square, group());
  AllGatherInto(rows, square, group());
  for (int r = 0; r < world(); ++r) {
    EXPECT_TRUE(stacked[r].eq(r + 1).all().item<bool>());
    EXPECT_TRUE(rows.narrow(0, 2 * r, 2).eq(r + 1).all().item<bool>());
  }
  at::Tensor part = at::zeros({4});
  ReduceScatter(part, stacked, group());
  EXPECT_TRUE(part.eq(world() * (rank() + 1)).all().item<bool>());
  AllReduce(sum, group());
  Broadcast(sum, group());
  EXPECT_EQ(Gather(scalar, group()).size(), rank() == 0 ? static_cast<size_t>(world()) : 0u);
}

TEST_P(EachBackend, ConjugatedAndNegatedViewsKeepTheirValues) {
  const at::Tensor z = at::complex(at::full({3}, 1.0), at::full({3}, rank() + 1.0)).conj();
  EXPECT_TRUE(at::imag(AllGather(z, group())[0].resolve_conj()).eq(-1).all().item<bool>());
  at::Tensor total = z.clone();
  at::Tensor view = total.conj();
  AllReduce(view, group());
  EXPECT_TRUE(at::imag(total.resolve_conj()).abs().eq(world() * (world() + 1) / 2).all().item<bool>());
  const at::Tensor negated = at::imag(at::complex(at::zeros({3}), at::full({3}, rank() + 1.0)).conj());
  EXPECT_TRUE(AllGather(negated, group())[world() - 1].eq(-world()).all().item<bool>());
  if (world() > 1 && rank() < 2) {
    at::Tensor in = at::zeros({3}, at::kComplexFloat);
    if (rank() == 0) Send(z, 1, group());
    if (rank() == 1) Receive(in, 0, group());
    EXPECT_TRUE(rank() == 0 || at::imag(in).eq(-1).all().item<bool>());
  }
}

TEST_P(EachBackend, APolledWorkOfATensorThatIsNotContiguousHasItsResult) {
  at::Tensor t = at::full({2, 3}, rank() + 1.0).t();
  const WorkPtr work = AllReduceAsync(t, group());
  while (!work->isCompleted()) std::this_thread::yield();
  EXPECT_TRUE(t.eq(world() * (world() + 1) / 2.0).all().item<bool>());
  at::Tensor u = at::full({2, 3}, rank() + 1.0).t();
  AllReduceAsync(u, group())->getFuture()->wait();
  EXPECT_TRUE(u.eq(world() * (world() + 1) / 2.0).all().item<bool>());
  if (world() > 1) {
    EXPECT_THROW(AllReduce(at::zeros({1}).expand({4}), group()), c10::Error);
  }
}

TEST_P(EachBackend, ManyUnderWayAtOnce) {
  std::vector<at::Tensor> sums, copies;
  std::vector<WorkPtr> works;
  for (int k = 0; k < 20; ++k) {
    sums.push_back(at::full({1 + k * 5000}, rank() + k * 1.0));
    copies.push_back(at::full({3}, rank() * 100.0 + k));
    works.push_back(AllReduceAsync(sums[k], group()));
    works.push_back(BroadcastAsync(copies[k], group(), k % world()));
  }
  for (size_t i = works.size(); i-- > 0;) works[i]->wait();
  for (int k = 0; k < 20; ++k) {
    EXPECT_TRUE(sums[k].eq(k * world() + world() * (world() - 1) / 2.0).all().item<bool>()) << k;
    EXPECT_TRUE(copies[k].eq((k % world()) * 100.0 + k).all().item<bool>()) << k;
  }
}

TEST_P(EachBackend, AnAsynchronousOneGoesOnWithoutAWait) {
  at::Tensor t = at::full({3}, rank() + 1.0);
  const WorkPtr work = AllReduceAsync(t, group());
  while (!work->isCompleted()) std::this_thread::yield();
  EXPECT_TRUE(work->isSuccess());
  EXPECT_TRUE(t.eq(world() * (world() + 1) / 2.0).all().item<bool>());
  // Everyone is done before anyone leaves, without a wait of mine.
  const auto future = AllReduceAsync(t, group())->getFuture();
  future->wait();
  EXPECT_TRUE(t.eq(world() * world() * (world() + 1) / 2.0).all().item<bool>());
}

TEST_P(EachBackend, SendAndReceiveByTagInEveryDirectionAtOnce) {
  if (world() == 1) {
    EXPECT_THROW(Send(at::ones({1}), 0, group()), c10::Error);
    EXPECT_THROW(Receive(at::ones({1}), 0, group()), c10::Error);
    return;
  }
  const int next = (rank() + 1) % world(), last = (rank() + world() - 1) % world();
  // Larger than any buffer between two ranks, all sent before anyone receives; the second tag is asked for first.
  const at::Tensor large = at::full({300000}, rank() + 0.5), small = at::full({3}, rank() + 0.25);
  const WorkPtr one = SendAsync(large, next, group(), 1), two = SendAsync(small, next, group(), 2);
  at::Tensor large_in = at::zeros({300000}), small_in = at::zeros({3}).expand({3}).contiguous();
  const WorkPtr in_two = ReceiveAsync(small_in, last, group(), 2), in_one = ReceiveAsync(large_in, last, group(), 1);
  in_two->wait();
  in_one->wait();
  one->wait();
  two->wait();
  EXPECT_TRUE(large_in.eq(last + 0.5).all().item<bool>());
  EXPECT_TRUE(small_in.eq(last + 0.25).all().item<bool>());
  // Not contiguous, and of no elements.
  at::Tensor column = at::zeros({3, 2}).select(1, 0), nothing = at::zeros({0});
  if (rank() == 0) {
    Send(at::arange(6).view({2, 3}).t().select(1, 1).to(at::kFloat), 1, group());
    Send(nothing, 1, group(), 7);
  } else if (rank() == 1) {
    Receive(column, 0, group());
    Receive(nothing, 0, group(), 7);
    EXPECT_TRUE(column.equal(at::arange(3, 6).to(at::kFloat)));
  }
}

TEST_P(EachBackend, RefusesWrongArgumentsBeforeAnythingIsSent) {
  at::Tensor t = at::ones({4});
  EXPECT_THROW(Broadcast(t, group(), world()), c10::Error);
  EXPECT_THROW(Broadcast(t, group(), -1), c10::Error);
  EXPECT_THROW(Broadcast(at::Tensor(), group()), c10::Error);
  EXPECT_THROW(AllGatherInto(at::ones({4 * world() + 1}), t, group()), c10::Error);
  EXPECT_THROW(ReduceScatter(t, at::ones({4 * world()}, at::kDouble), group()), c10::Error);
  EXPECT_THROW(Scatter(t, std::vector<at::Tensor>(world() + 1, t), group(), GetRank(group())), c10::Error);
  EXPECT_THROW(AllToAll(t, t, group(), std::vector<int64_t>(world(), 5), {}), c10::Error);
  EXPECT_THROW(AllToAll(t, t, group(), {}, std::vector<int64_t>(world(), -1)), c10::Error);
  EXPECT_THROW(AllReduce(at::ones({4}).to_sparse(), group()), c10::Error);
  // The group is as good as before.
  AllReduce(t, group());
  EXPECT_TRUE(t.eq(world()).all().item<bool>());
}

TEST_P(EachBackend, BarriersAndVotes) {
  Barrier(group());
  MonitoredBarrier(group(), std::chrono::seconds(30));
  BarrierAsync(group())->wait();
  EXPECT_TRUE(AnyRank(rank() == world() - 1, group()));
  EXPECT_FALSE(AnyRank(false, group()));
}

TEST_P(EachBackend, HalfTypesAreAveragedWithoutOverflow) {
  at::Tensor t = at::full({100}, 60000.0).to(at::kHalf);
  if (GetParam() == "shm") {  // Gloo adds in half and overflows
    AllReduce(t, group(), c10d::ReduceOp::AVG);
    EXPECT_TRUE(t.eq(60000.0).all().item<bool>()) << t[0];
  }
}

INSTANTIATE_TEST_SUITE_P(Backends, EachBackend, testing::Values("shm", "gloo"),
                         [](const auto& info) { return info.param; });

}  // namespace
}  // namespace lockstep
