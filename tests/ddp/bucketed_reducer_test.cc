#include "lockstep/ddp/bucketed_reducer.h"

#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/functional/loss.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/sgd.h>
#include <torch/utils.h>

#include <cmath>

#include "expect_error.h"
#include "lockstep/comm/process_group.h"
#include "lockstep/ddp/all_reduce_hook.h"
#include "lockstep/ddp/distributed_data_parallel.h"
#include "lockstep/ddp/named_parameters.h"
#include "lockstep/nn/activation_checkpoint.h"
#include "test_models.h"

namespace lockstep {
namespace {

const ProcessGroupPtr& Group() {
  static const ProcessGroupPtr group = InitProcessGroup().value();
  return group;
}
int Rank() { return GetRank(Group()); }
int World() { return GetWorldSize(Group()); }

/// The average over ranks of what `of` gives for each.
at::Tensor Average(const std::function<at::Tensor(int)>& of) {
  at::Tensor sum = of(0);
  for (int rank = 1; rank < World(); ++rank) sum = sum + of(rank);
  return sum / World();
}

BucketedReducerOptions Small() {
  BucketedReducerOptions options;
  options.bucket_cap_bytes = options.first_bucket_cap_bytes = 8;
  return options;
}

at::Tensor Leaf(const at::Tensor& value) { return value.clone().requires_grad_(); }

/// Every rank's gradients times the rank's number, summed, in fresh memory.
class RankHook : public c10d::CommHookInterface {
 public:
  c10::intrusive_ptr<c10::ivalue::Future> runHook(c10d::GradBucket& bucket) override {
    buckets.push_back(bucket.getIndex());
    gradients = bucket.getGradients().size();
    last = bucket.isLast();
    at::Tensor result = bucket.getBuffer() * (GetRank(Group()) + 1);
    AllReduce(result, Group());
    auto future = c10::make_intrusive<c10::ivalue::Future>(c10::TensorType::get());
    future->markCompleted(result);
    return future;
  }
  at::Tensor parseHookResult(const c10::IValue& result) override { return result.toTensor(); }
  std::vector<size_t> buckets;
  size_t gradients = 0;
  bool last = false;
};

// How forwards and backwards belong together.

TEST(BucketedReducer, SeveralForwardsBeforeOneBackward) {
  for (bool find_unused : {false, true}) {
    at::Tensor a = Leaf(at::ones({3})), b = Leaf(at::ones({2}));
    BucketedReducerOptions options = Small();
    options.find_unused_parameters = find_unused;
    BucketedReducer reducer({{"a", a}, {"b", b}}, Group(), options);
    for (int step = 0; step < 3; ++step) {
      a.mutable_grad().reset();
      b.mutable_grad().reset();
      const at::Tensor first = (a * (Rank() + 1)).sum();
      reducer.PrepareForBackward({first});
      const at::Tensor second = (b * 10 * (Rank() + 1)).sum() + a.sum();
      reducer.PrepareForBackward({second});
      (first + second).backward();
      EXPECT_TRUE(at::allclose(a.grad(), Average([](int r) { return at::full({3}, r + 2.); })));
      EXPECT_TRUE(at::allclose(b.grad(), Average([](int r) { return at::full({2}, 10. * (r + 1)); })));
    }
  }
}

TEST(BucketedReducer, ABackwardForEachOfTwoForwards) {
  for (bool find_unused : {false, true}) {
    at::Tensor a = Leaf(at::ones({3}));
    BucketedReducerOptions options;
    options.find_unused_parameters = find_unused;
    BucketedReducer reducer({{"a", a}}, Group(), options);
    const at::Tensor first = (a * (Rank() + 1)).sum(), second = (a * 5 * Rank()).sum();
    reducer.PrepareForBackward({first});
    reducer.PrepareForBackward({second});
    first.backward();
    EXPECT_TRUE(at::allclose(a.grad(), Average([](int r) { return at::full({3}, r + 1.); })));
    second.backward();
    EXPECT_TRUE(at::allclose(a.grad(), Average([](int r) { return at::full({3}, r + 1. + 5. * r); })));
  }
}

TEST(BucketedReducer, OneGraphTwice) {
  at::Tensor a = Leaf(at::ones({3}));
  BucketedReducer reducer({{"a", a}}, Group());
  const at::Tensor out = (a * (Rank() + 1)).sum();
  reducer.PrepareForBackward({out});
  out.backward({}, /*retain_graph=*/true);
  out.backward();
  EXPECT_TRUE(at::allclose(a.grad(), Average([](int r) { return at::full({3}, 2. * (r + 1)); })));
}

TEST(BucketedReducer, AForwardThatAccumulatesIsKnownByItsOutputs) {
  at::Tensor a = Leaf(at::ones({3}));
  BucketedReducer reducer({{"a", a}}, Group());
  const at::Tensor local = (a * (Rank() + 1)).sum(), averaged = (a * 2 * (Rank() + 1)).sum();
  reducer.PrepareForAccumulation({local});
  reducer.PrepareForBackward({averaged});
  local.backward();
  EXPECT_TRUE(a.grad().equal(at::full({3}, Rank() + 1.)));
  averaged.backward();
  EXPECT_TRUE(at::allclose(a.grad(), Average([](int r) { return at::full({3}, 3. * (r + 1)); })));
}

TEST(BucketedReducer, RefusesABackwardWithoutForward) {
  if (World() == 1) return;  // nothing is reduced
  at::Tensor a = Leaf(at::ones({3}));
  BucketedReducer reducer({{"a", a}}, Group());
  ExpectError([&] { a.sum().backward(); }, {"backward without forward", "of a ", "PrepareForBackward"});
  reducer.PrepareForBackward({});
  a.sum().backward();
  ExpectError([&] { a.sum().backward(); }, {"backward without forward"});
  reducer.PrepareForBackward({});
  a.sum().backward();
}

TEST(BucketedReducer, RefusesDoubleBackwardAndServesGradientPenalties) {
  at::Tensor a = Leaf(at::full({3}, 2.)), x = Leaf(at::full({3}, Rank() + 1.));
  BucketedReducer reducer({{"a", a}}, Group());
  at::Tensor out = (a * a * x * x).sum();
  reducer.PrepareForBackward({out});
  if (World() > 1) {
    ExpectError([&] { out.backward({}, true, /*create_graph=*/true); },
                {"double backward", "create_graph", "torch::autograd::grad"});
    ExpectError([&] { reducer.PrepareForBackward({out}); }, {"did not come to its end"});
  }
  a.mutable_grad().reset();
  out = (a * a * x * x).sum();
  reducer.PrepareForBackward({out});
  // The penalty on the input's gradient, 2 a² x, is differentiated for a.
  const at::Tensor grad = torch::autograd::grad({out}, {x}, {}, true, true)[0];
  grad.sum().backward();
  EXPECT_TRUE(at::allclose(a.grad(), Average([](int r) { return at::full({3}, 8. * (r + 1)); })));
}

// What is wrong on one rank is told to all.

TEST(BucketedReducer, AParameterUnusedOnOneRankIsAnErrorOnAll) {
  if (World() == 1) return;
  at::Tensor a = Leaf(at::ones({3})), b = Leaf(at::ones({2}));
  BucketedReducer reducer({{"a", a}, {"b", b}}, Group(), Small());
  const auto step = [&](bool use_b) {
    const at::Tensor out = use_b ? a.sum() + b.sum() : a.sum();
    reducer.PrepareForBackward({out});
    out.backward();
  };
  for (int i = 0; i < 3; ++i) {
    step(true);
    ExpectError([&] { step(Rank() != 1); },
                {"rank 1: parameters without a gradient: b;", "find_unused_parameters", "static_graph"});
  }
  ExpectError([&] { step(false); }, {World() == 2 ? "ranks 0, 1:" : "ranks 0, 1, 2, 3:"});
  a.mutable_grad().reset();
  step(true);
  EXPECT_TRUE(at::allclose(a.grad(), at::ones({3})));
}

TEST(BucketedReducer, NamesUpToTenUnusedParameters) {
  if (World() == 1) return;
  std::vector<NamedParameter> parameters = {{"used", Leaf(at::ones({1}))}};
  for (int i = 0; i < 12; ++i) parameters.push_back({"p" + std::to_string(i), Leaf(at::ones({1}))});
  BucketedReducer reducer(parameters, Group());
  reducer.PrepareForBackward({});
  ExpectError([&] { parameters[0].parameter.sum().backward(); }, {"p0, p1, ", "p9 and 2 more"});
}

TEST(BucketedReducer, ABackwardThatThrowsOnOneRankEndsOnAll) {
  if (World() == 1) return;
  at::Tensor a = Leaf(at::ones({3})), b = Leaf(at::ones({2}));
  BucketedReducer reducer({{"a", a}, {"b", b}}, Group(), Small());
  at::Tensor inner = a * 2;
  if (Rank() == 1) {
    inner.register_hook([](const at::Tensor&) -> at::Tensor { throw std::runtime_error("out of luck"); });
  }
  at::Tensor out = inner.sum() + b.sum();
  reducer.PrepareForBackward({out});
  if (Rank() == 1) {
    ExpectError([&] { out.backward(); }, {"out of luck"});
    ExpectError([&] { reducer.Abandon("out of luck"); }, {"rank 1: out of luck"});
  } else {
    ExpectError([&] { out.backward(); }, {"rank 1: out of luck"});
  }
  a.mutable_grad().reset();
  out = a.sum() + b.sum();
  reducer.PrepareForBackward({out});
  out.backward();
  EXPECT_TRUE(at::allclose(a.grad(), at::ones({3})));
}

TEST(BucketedReducer, ABackwardAfterOneThatThrewIsRefusedUntilTheNextForward) {
  if (World() == 1) return;
  at::Tensor a = Leaf(at::ones({3}));
  BucketedReducer reducer({{"a", a}}, Group());
  at::Tensor inner = a * 2;
  inner.register_hook([](const at::Tensor&) -> at::Tensor { throw std::runtime_error("first"); });
  const at::Tensor one = inner.sum(), two = (a * (Rank() + 1.)).sum();
  reducer.PrepareForBackward({one});
  reducer.PrepareForBackward({two});
  ExpectError([&] { one.backward(); }, {"first"});
  ExpectError([&] { two.backward(); }, {"the last averaged backward threw"});
  ExpectError([&] { reducer.PrepareForAccumulation({}); }, {"did not come to its end"});
  // One that was not to be averaged is forgotten.
  at::Tensor again = a * 2;
  again.register_hook([](const at::Tensor&) -> at::Tensor { throw std::runtime_error("second"); });
  const at::Tensor local = again.sum(), three = (a * (Rank() + 1.)).sum();
  reducer.PrepareForAccumulation({local});
  reducer.PrepareForBackward({three});
  ExpectError([&] { local.backward(); }, {"second"});
  a.mutable_grad().reset();
  three.backward();
  EXPECT_TRUE(at::allclose(a.grad(), Average([](int r) { return at::full({3}, r + 1.); })));
}

TEST(BucketedReducer, OneBackwardThroughAveragedAndAccumulatedForwards) {
  for (const bool averaged_first : {true, false}) {
    at::Tensor a = Leaf(at::ones({3})), b = Leaf(at::ones({2}));
    BucketedReducer reducer({{"a", a}, {"b", b}}, Group());
    const at::Tensor one = (a * (Rank() + 1.)).sum(), two = (b * (Rank() + 1.)).sum();
    if (averaged_first) reducer.PrepareForBackward({one});
    reducer.PrepareForAccumulation({two});
    if (!averaged_first) reducer.PrepareForBackward({one});
    (one + two).backward();
    EXPECT_TRUE(at::allclose(a.grad(), Average([](int r) { return at::full({3}, r + 1.); })));
    EXPECT_TRUE(at::allclose(b.grad(), Average([](int r) { return at::full({2}, r + 1.); })));
  }
}

TEST(BucketedReducer, ARankMayUseNothingAtAll) {
  at::Tensor a = Leaf(at::ones({3})), x = Leaf(at::ones({3}));
  BucketedReducerOptions options;
  options.find_unused_parameters = true;
  BucketedReducer reducer({{"a", a}}, Group(), options);
  for (int step = 0; step < 4; ++step) {
    a.mutable_grad().reset();
    const bool uses = step != 1 || Rank() != 0;
    const at::Tensor out = uses ? (a * (step + 1.)).sum() : (x * 1).sum();
    reducer.PrepareForBackward({out});
    out.backward();
    if (World() == 1) continue;
    EXPECT_TRUE(at::allclose(a.grad(), at::full({3}, step == 1 ? 2. * (World() - 1) / World() : step + 1.))) << step;
  }
}

/// Throws once, on one rank.
class ThrowingHook : public c10d::CommHookInterface {
 public:
  c10::intrusive_ptr<c10::ivalue::Future> runHook(c10d::GradBucket& bucket) override {
    if (++calls == 2 && Rank() == World() - 1) throw std::runtime_error("out of luck");
    return good.runHook(bucket);
  }
  at::Tensor parseHookResult(const c10::IValue& result) override { return good.parseHookResult(result); }
  AllReduceHook good{Group()};
  int calls = 0;
};

TEST(BucketedReducer, AHookThatThrowsOnOneRankEndsTheStepOnAll) {
  if (World() == 1) return;
  at::Tensor a = Leaf(at::ones({3}));
  BucketedReducerOptions options;
  options.hook = std::make_shared<ThrowingHook>();
  BucketedReducer reducer({{"a", a}}, Group(), options);
  const auto step = [&] {
    const at::Tensor out = a.sum();
    reducer.PrepareForBackward({out});
    out.backward();
  };
  step();
  ExpectError(step, {Rank() == World() - 1 ? "out of luck" : "did not come to its end"});
  if (Rank() == World() - 1) ExpectError([&] { reducer.PrepareForBackward({}); }, {"did not come to its end"});
  a.mutable_grad().reset();
  step();
  EXPECT_TRUE(at::allclose(a.grad(), at::ones({3})));
}

// Frozen parameters.

TEST(BucketedReducer, ParametersMayBeFrozenAndUnfrozenAlike) {
  at::Tensor a = Leaf(at::ones({3})), b = Leaf(at::ones({2})), c = Leaf(at::ones({2}));
  c.requires_grad_(false);
  BucketedReducer reducer({{"a", a}, {"b", b}, {"c", c}}, Group(), Small());
  const auto step = [&] {
    for (auto* p : {&a, &b, &c}) p->mutable_grad().reset();
    const at::Tensor out = ((a.sum() + b.sum()) * (Rank() + 1) + c.sum() * Rank());
    reducer.PrepareForBackward({out});
    out.backward();
  };
  const at::Tensor one = Average([](int r) { return at::full({1}, r + 1.); });
  step();
  step();
  EXPECT_FALSE(c.grad().defined());
  b.requires_grad_(false);
  c.requires_grad_(true);
  for (int i = 0; i < 3; ++i) {
    step();
    EXPECT_TRUE(at::allclose(a.grad(), one.expand({3})));
    EXPECT_FALSE(b.grad().defined());
    EXPECT_TRUE(at::allclose(c.grad(), (one - 1).expand({2})));
  }
  b.requires_grad_(true);
  step();
  EXPECT_TRUE(at::allclose(b.grad(), one.expand({2})));
}

TEST(BucketedReducer, FreezingKeepsWhatWasAccumulated) {
  at::Tensor a = Leaf(at::ones({3})), b = Leaf(at::ones({2}));
  BucketedReducer reducer({{"a", a}, {"b", b}}, Group());
  const auto run = [&](bool average) {
    const at::Tensor out = a.sum() * (Rank() + 1) + b.sum();
    average ? reducer.PrepareForBackward({out}) : reducer.PrepareForAccumulation({out});
    out.backward();
  };
  run(true);
  run(true);
  for (auto* p : {&a, &b}) p->mutable_grad().zero_();
  run(false);
  b.requires_grad_(false);
  run(true);
  EXPECT_TRUE(at::allclose(a.grad(), Average([](int r) { return at::full({3}, 2. * (r + 1)); })));
}

TEST(BucketedReducer, FreezingOnOneRankIsAnErrorThatNamesTheParameter) {
  if (World() == 1) return;
  at::Tensor a = Leaf(at::ones({3})), b = Leaf(at::ones({2}));
  BucketedReducer reducer({{"a", a}, {"b", b}}, Group(), Small());
  const auto step = [&] {
    const at::Tensor out = a.sum() + b.sum();
    reducer.PrepareForBackward({out});
    out.backward();
  };
  step();
  step();
  if (Rank() == 1) b.requires_grad_(false);
  const std::string others = World() == 2 ? "rank 0 and not on rank 1" : "ranks 0, 2, 3 and not on rank 1";
  ExpectError(step, {"parameter b needs a gradient on " + others});
  ExpectError(step, {"parameter b"});  // until it is mended
  b.requires_grad_(true);
  step();
  b.requires_grad_(false);
  step();
}

TEST(BucketedReducer, EverythingMayBeFrozenForAWhile) {
  torch::nn::Linear g(2, 2), d(2, 1);
  DistributedDataParallel generator(g, Group()), critic(d, Group());
  const at::Tensor z = at::full({1, 2}, Rank() + 1.);
  for (int i = 0; i < 3; ++i) {
    g->zero_grad();
    d->zero_grad();
    for (auto& p : d->parameters()) p.requires_grad_(false);
    critic.forward(generator.forward(z)).sum().backward();
    EXPECT_FALSE(d->weight.grad().defined());
    for (auto& p : d->parameters()) p.requires_grad_(true);
    critic.forward(z).sum().backward();
    EXPECT_TRUE(at::allclose(d->weight.grad(), Average([](int r) { return at::full({1, 2}, r + 1.); })));
    EXPECT_TRUE(at::allclose(g->bias.grad(), d->weight.detach()[0]));
  }
}

TEST(BucketedReducer, FreezingForgetsNothingThatWasUsedBefore) {
  at::Tensor a = Leaf(at::ones({2})), b = Leaf(at::ones({2})), c = Leaf(at::ones({2}));
  BucketedReducerOptions options;
  options.find_unused_parameters = true;
  BucketedReducer reducer({{"a", a}, {"b", b}, {"c", c}}, Group(), options);
  const auto run = [&](const at::Tensor& out, bool average) {
    average ? reducer.PrepareForBackward({out}) : reducer.PrepareForAccumulation({out});
    out.backward();
  };
  run((a + b + c).sum(), true);
  for (auto* p : {&a, &b, &c}) p->mutable_grad().reset();
  run(((a + b) * (Rank() + 1.)).sum(), false);
  c.requires_grad_(false);
  run(a.sum(), true);
  EXPECT_TRUE(at::allclose(b.grad(), Average([](int r) { return at::full({2}, r + 1.); })));
  c.requires_grad_(true);
  c.mutable_grad() = at::full({2}, Rank() + 1.);  // accumulated before any averaged forward
  run(a.sum(), true);
  EXPECT_TRUE(at::allclose(c.grad(), Average([](int r) { return at::full({2}, r + 1.); })));
}

TEST(BucketedReducer, AHookIsNotAskedWhenParametersAreFrozen) {
  if (World() == 1) return;
  at::Tensor a = Leaf(at::ones({3})), b = Leaf(at::ones({3}));
  BucketedReducerOptions options;
  const auto hook = std::make_shared<RankHook>();
  options.hook = hook;
  BucketedReducer reducer({{"a", a}, {"b", b}}, Group(), options);
  for (int step = 0; step < 3; ++step) {
    if (step == 2) b.requires_grad_(false);
    const at::Tensor out = (a + b).sum();
    reducer.PrepareForBackward({out});
    out.backward();
  }
  EXPECT_EQ(hook->buckets.size(), 3u);
  if (Rank() == 1) a.requires_grad_(false);
  ExpectError([&] { reducer.PrepareForBackward({}); }, {"parameter a needs a gradient"});
}

TEST(BucketedReducer, AConversionAfterWrappingIsNoticed) {
  if (World() == 1) return;
  torch::nn::Linear model(3, 2);
  DistributedDataParallel ddp(model, Group());
  model->to(at::kDouble);
  ExpectError([&] { ddp.forward(at::ones({1, 3}, at::kDouble)); }, {"weight", "another dtype or device"});
}

// Parameters and gradients of every kind.

TEST(BucketedReducer, RefusesASecondReducer) {
  at::Tensor a = Leaf(at::ones({3})), frozen = at::ones({3});
  {
    BucketedReducer first({{"a", a}, {"frozen", frozen}}, Group());
    ExpectError([&] { BucketedReducer second({{"mine", a}}, Group()); }, {"parameter mine has a reducer already"});
    at::Tensor other = Leaf(at::ones({1}));
    BucketedReducer second({{"b", other}, {"frozen", frozen}}, Group());
  }
  BucketedReducer again({{"a", a}}, Group());
  EXPECT_THROW(BucketedReducer({{"frozen", frozen}}, Group()), c10::Error);
}

TEST(BucketedReducer, SparseGradients) {
  const auto run = [](bool sparse) {
    torch::manual_seed(3);
    torch::nn::Embedding embedding(torch::nn::EmbeddingOptions(10, 4).sparse(sparse));
    torch::nn::Linear linear(4, 2);
    torch::nn::Sequential model(embedding, linear);
    DistributedDataParallel ddp(model, Group());
    torch::optim::SGD optimizer(ddp.parameters(), torch::optim::SGDOptions(0.5));
    torch::manual_seed(10 + Rank());
    for (int step = 0; step < 5; ++step) {
      optimizer.zero_grad();
      ddp.forward(at::randint(10, {3 + Rank()})).square().sum().backward();
      EXPECT_EQ(embedding->weight.grad().is_sparse(), sparse);
      const at::NoGradGuard no_grad;  // LibTorch's SGD takes no sparse gradients
      embedding->weight.sub_(embedding->weight.grad().to_dense() * 0.5);
      linear->weight.sub_(linear->weight.grad() * 0.5);
    }
    ddp.CheckParametersEqual();
    return embedding->weight.detach().clone();
  };
  EXPECT_TRUE(at::allclose(run(true), run(false), 1e-5, 1e-6));
}

TEST(BucketedReducer, ARankMayHaveNoSparseGradient) {
  for (const bool weighted : {false, true}) {
    at::Tensor w = Leaf(at::ones({5, 3})), b = Leaf(at::ones({2}));
    BucketedReducerOptions options;
    options.find_unused_parameters = !weighted;
    BucketedReducer reducer({{"w", w, /*sparse=*/true}, {"b", b}}, Group(), options);
    const bool leaves = Rank() == World() - 1 && World() > 1;
    at::Tensor out = b.sum();
    if (weighted) reducer.SetWeight(leaves ? 0. : 1.);
    if (weighted || !leaves) out = out + at::embedding(w, at::tensor({1, 2}, at::kLong), -1, false, true).sum();
    reducer.PrepareForBackward({out});
    out.backward();
    const double expected = World() == 1 ? 1 : weighted ? World() - 1. : (World() - 1.) / World();
    EXPECT_TRUE(at::allclose(w.grad().to_dense()[1], at::full({3}, expected)));
    EXPECT_TRUE(at::allclose(w.grad().to_dense()[0], at::zeros({3})));
  }
}

TEST(BucketedReducer, ASparseGradientThatNobodyAnnouncedIsAnError) {
  if (World() == 1) return;
  at::Tensor weight = Leaf(at::ones({4, 2}));
  BucketedReducer reducer({{"weight", weight}}, Group());
  reducer.PrepareForBackward({});
  const auto lookup = [&] { return at::embedding(weight, at::zeros({1}, at::kLong), -1, false, /*sparse=*/true); };
  ExpectError([&] { lookup().sum().backward(); }, {"the gradient of weight is sparse", "NamedParameter::sparse"});
}

TEST(BucketedReducer, ComplexAndRealParametersOfSeveralDtypes) {
  at::Tensor a = Leaf(at::ones({3}, at::kComplexFloat)), b = Leaf(at::ones({2}, at::kDouble)), c = Leaf(at::ones({5}));
  BucketedReducer reducer({{"a", a}, {"b", b}, {"c", c}}, Group());
  for (int step = 0; step < 3; ++step) {
    for (auto* p : {&a, &b, &c}) p->mutable_grad().reset();
    const at::Tensor out = at::real(a * c10::complex<double>(Rank() + 1, -2. * Rank())).sum() + (b * Rank()).sum() +
                           c.sum().to(at::kDouble);
    reducer.PrepareForBackward({out});
    out.backward();
    const c10::complex<double> of_a((World() + 1) / 2., World() - 1);
    EXPECT_TRUE(at::allclose(a.grad(), at::full({3}, of_a, at::kComplexFloat))) << a.grad();
    EXPECT_TRUE(at::allclose(b.grad(), at::full({2}, (World() - 1) / 2., at::kDouble)));
    EXPECT_TRUE(c.grad().equal(at::ones({5})));
  }
}

TEST(BucketedReducer, HalfGradientsDoNotOverflow) {
  for (auto dtype : {at::kHalf, at::kBFloat16}) {
    at::Tensor a = Leaf(at::ones({3}, dtype));
    BucketedReducer reducer({{"a", a}}, Group());
    const at::Tensor out = (a * 60000).sum();
    reducer.PrepareForBackward({out});
    out.backward();
    EXPECT_TRUE(at::allclose(a.grad().to(at::kFloat), at::full({3}, 60000.).to(dtype).to(at::kFloat), 1e-2));
  }
}

TEST(BucketedReducer, GradientsLieInTheBucketsAndKeepTheParametersStrides) {
  at::Tensor a = Leaf(at::rand({4, 3, 2, 2}).contiguous(at::MemoryFormat::ChannelsLast)),
             b = Leaf(at::rand({3, 2}).t());
  BucketedReducer reducer({{"a", a}, {"b", b}}, Group());
  void* before = nullptr;
  for (int step = 0; step < 4; ++step) {
    if (a.grad().defined()) a.mutable_grad().detach_().zero_();  // as zero_grad(false) does
    b.mutable_grad().reset();
    const at::Tensor out = (a * (Rank() + 1)).sum() + b.sum();
    reducer.PrepareForBackward({out});
    out.backward();
    EXPECT_EQ(a.grad().strides(), a.strides());
    EXPECT_EQ(b.grad().strides(), b.strides());
    EXPECT_TRUE(at::allclose(a.grad(), Average([&](int r) { return at::full(a.sizes(), r + 1.); })));
    if (step > 1 && World() > 1) {  // the buckets are made anew once
      EXPECT_EQ(a.grad().data_ptr(), before);
    }
    before = a.grad().data_ptr();
  }
}

TEST(BucketedReducer, BucketsFollowTheOrderOfReadinessAfterTheFirstStep) {
  if (World() == 1) return;
  // Used in the order b, c, a: backward makes a, c, b ready.
  at::Tensor a = Leaf(at::ones({2})), b = Leaf(at::ones({2})), c = Leaf(at::ones({2}));
  BucketedReducer reducer({{"a", a}, {"b", b}, {"c", c}}, Group(), Small());
  const auto step = [&] {
    const at::Tensor out = (at::tanh(at::tanh(b * 1) * c) * a).sum();
    reducer.PrepareForBackward({out});
    out.backward();
  };
  using Names = std::vector<std::vector<std::string>>;
  EXPECT_EQ(reducer.bucket_names(), (Names{{"c"}, {"b"}, {"a"}}));
  step();
  EXPECT_EQ(reducer.statistics().ready_order, (std::vector<std::string>{"a", "c", "b"}));
  step();
  EXPECT_EQ(reducer.bucket_names(), (Names{{"a"}, {"c"}, {"b"}}));
  const ReducerStatistics statistics = reducer.statistics();
  EXPECT_EQ(statistics.backwards, 2);
  EXPECT_EQ(statistics.buckets, 3u);
  EXPECT_EQ(statistics.bytes, 24);
  EXPECT_EQ(statistics.last.size(), 3u);
  EXPECT_GT(statistics.communication_seconds, 0);
  EXPECT_LE(statistics.overlapped_seconds, statistics.communication_seconds);
  for (const auto& event : statistics.last) EXPECT_GE(event.done, event.launched);
}

TEST(BucketedReducer, TakesUpTheBucketsOfAnother) {
  if (World() == 1) return;
  using Names = std::vector<std::vector<std::string>>;
  for (int steps : {0, 1, 2}) {  // before, between and after the buckets are made anew
    const auto leaves = [] {
      return std::vector<NamedParameter>{
          {"a", Leaf(at::ones({2}))}, {"b", Leaf(at::ones({2}))}, {"c", Leaf(at::ones({2}))}};
    };
    const auto step = [](BucketedReducer& reducer, const std::vector<NamedParameter>& p) {
      const at::Tensor out = (at::tanh(at::tanh(p[1].parameter * 1) * p[2].parameter) * p[0].parameter).sum();
      reducer.PrepareForBackward({out});
      out.backward();
    };
    const auto one = leaves(), two = leaves();
    BucketedReducer first(one, Group(), Small()), second(two, Group(), Small());
    for (int i = 0; i < steps; ++i) step(first, one);
    const absl::Status loaded = second.LoadState(first.SaveState());
    ASSERT_TRUE(loaded.ok()) << loaded;
    EXPECT_EQ(second.bucket_names(), first.bucket_names());
    step(second, two);
    EXPECT_EQ(second.bucket_names(), steps == 0 ? (Names{{"c"}, {"b"}, {"a"}}) : (Names{{"a"}, {"c"}, {"b"}}));
    // Of others, or with other sizes of buckets: nothing is changed.
    BucketedReducerOptions large = Small();
    large.bucket_cap_bytes *= 2;
    const auto three = leaves();
    BucketedReducer other(three, Group(), large);
    EXPECT_FALSE(other.LoadState(first.SaveState()).ok());
    const auto alone = Leaf(at::ones({2}));
    BucketedReducer fewer({{"a", alone}}, Group(), Small());
    EXPECT_FALSE(fewer.LoadState(first.SaveState()).ok());
  }
}

// Gradients that are made in the buckets.

at::Tensor Large(double value) { return at::full({256, 256}, value); }

/// The sizes of weights, inputs and what lies between are all the same, so that much is made in a place that was meant
/// for a gradient.
TEST(BucketedReducer, ServesWeightsAsLargeAsActivations) {
  torch::manual_seed(8);
  std::vector<NamedParameter> parameters;
  for (int i = 0; i < 4; ++i) parameters.push_back({"w" + std::to_string(i), Leaf(at::randn({256, 256}) / 16)});
  BucketedReducer reducer(parameters, Group());
  const auto forward = [&](int rank, int step) {
    at::Tensor x = Large(0.01 * (rank + 1) + 0.001 * step);
    for (const auto& named : parameters) x = at::tanh(at::mm(x, named.parameter)) + x;
    return x.square().mean();
  };
  for (int step = 0; step < 4; ++step) {
    std::vector<at::Tensor> inputs, expected;
    for (auto& named : parameters) {
      named.parameter.mutable_grad().reset();
      inputs.push_back(named.parameter);
      expected.push_back(at::zeros({256, 256}));
    }
    for (int rank = 0; rank < World(); ++rank) {
      const auto grads = torch::autograd::grad({forward(rank, step)}, inputs);
      for (size_t i = 0; i < grads.size(); ++i) expected[i] += grads[i] / World();
    }
    const at::Tensor loss = forward(Rank(), step);
    reducer.PrepareForBackward({loss});
    loss.backward();
    for (size_t i = 0; i < expected.size(); ++i) {
      EXPECT_TRUE(at::allclose(parameters[i].parameter.grad(), expected[i], 1e-4, 1e-7)) << step << " " << i;
    }
  }
}

TEST(BucketedReducer, AGradientThatAHookKeepsStaysThisRanksOwn) {
  at::Tensor a = Leaf(Large(1)), kept;
  a.register_hook([&kept](const at::Tensor& grad) { kept = grad; });
  BucketedReducer reducer({{"a", a}}, Group());
  for (int step = 0; step < 3; ++step) {
    a.mutable_grad().reset();
    const at::Tensor out = (a * Large(Rank() + 1)).sum();
    reducer.PrepareForBackward({out});
    out.backward();
    EXPECT_TRUE(kept.equal(Large(Rank() + 1)));
    EXPECT_TRUE(at::allclose(a.grad(), Average([](int r) { return Large(r + 1); })));
  }
}

/// Makes a tensor in backward, as large as a weight, and keeps it.
struct Hoarder : torch::autograd::Function<Hoarder> {
  static std::vector<at::Tensor>& Hoard() {
    static std::vector<at::Tensor> hoard;
    return hoard;
  }
  static at::Tensor forward(torch::autograd::AutogradContext*, const at::Tensor& x) { return x * 1; }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext*,
                                                 const torch::autograd::variable_list& grads) {
    Hoard().push_back(Large(42));
    return {grads[0] * 1};
  }
};

TEST(BucketedReducer, WhatOthersMadeInABucketIsLeftAlone) {
  Hoarder::Hoard().clear();
  at::Tensor a = Leaf(Large(1)), b = Leaf(Large(1));
  BucketedReducerOptions options;
  options.find_unused_parameters = true;
  {
    BucketedReducer reducer({{"a", a}, {"b", b}}, Group(), options);
    for (int step = 0; step < 4; ++step) {
      a.mutable_grad().reset();
      b.mutable_grad().reset();
      const at::Tensor x = (Hoarder::apply(a * Large(Rank() + 1)) * (step % 2 == 0 ? b : Large(1))).sum();
      reducer.PrepareForBackward({x});
      x.backward();
      EXPECT_TRUE(at::allclose(a.grad(), Average([](int r) { return Large(r + 1); })));
      EXPECT_EQ(b.grad().defined(), step % 2 == 0);
      for (const auto& kept : Hoarder::Hoard()) EXPECT_TRUE(kept.equal(Large(42)));
    }
  }
  for (const auto& kept : Hoarder::Hoard()) EXPECT_TRUE(kept.equal(Large(42)));  // it outlives the reducer
  Hoarder::Hoard().clear();
}

TEST(BucketedReducer, ABackwardThatThrowsLeavesTheAllocatorAlone) {
  at::Tensor a = Leaf(Large(1));
  {
    BucketedReducer reducer({{"a", a}}, Group());
    at::Tensor inner = a * 2;
    inner.register_hook([](const at::Tensor&) -> at::Tensor { throw std::runtime_error("no"); });
    const at::Tensor out = inner.sum();
    reducer.PrepareForBackward({out});
    EXPECT_ANY_THROW(out.backward());
  }
  const at::Tensor one = Large(1), two = Large(2);  // of memory that nobody else has
  EXPECT_TRUE(one.equal(Large(1)));
  EXPECT_TRUE(two.equal(Large(2)));
  EXPECT_NE(one.data_ptr(), two.data_ptr());
}

TEST(BucketedReducer, AGradientThatSharesItsMemoryIsCopied) {
  // The gradient of `position` is a view of one that autograd still needs for `token`.
  at::Tensor position = Leaf(at::zeros({128, 256})), token = Leaf(at::zeros({128, 256}));
  BucketedReducer reducer({{"token", token}, {"position", position}}, Group());
  for (int step = 0; step < 3; ++step) {
    position.mutable_grad().reset();
    token.mutable_grad().reset();
    reducer.SetWeight(1);  // in place, so that sharing would show
    const at::Tensor z = at::tanh(token).unsqueeze(0), y = z + position.unsqueeze(0), out = (y * (Rank() + 1.)).sum();
    reducer.PrepareForBackward({out});
    out.backward();
    const double sum = World() * (World() + 1) / 2.;
    EXPECT_TRUE(at::allclose(position.grad(), at::full({128, 256}, sum)));
    EXPECT_TRUE(at::allclose(token.grad(), at::full({128, 256}, sum)));
  }
}

TEST(BucketedReducer, GradientsThatAUserHasPutThereAreTakenAsTheyAre) {
  at::Tensor w = Leaf(at::ones({200, 100})), v = Leaf(at::ones({200, 100}));
  const at::Tensor c = at::rand({100, 200}).t();
  BucketedReducer reducer({{"w", w}, {"v", v}}, Group());
  at::Tensor out = (w * c).sum() + v.sum();
  reducer.PrepareForBackward({out});
  w.mutable_grad() = torch::autograd::grad({out}, {w}, {}, true)[0];  // with other strides
  out.backward();
  EXPECT_TRUE(at::allclose(w.grad(), Average([&](int) { return 2 * c; }), 1e-4) || World() > 1);
  for (int step = 0; step < 2; ++step) {
    w.mutable_grad() = at::full({200, 100}, 5.);
    v.mutable_grad() = at::full({200, 100}, 7.);
    out = 2 * w.sum() + 3 * v.sum();
    reducer.PrepareForBackward({out});
    out.backward();
    std::swap(w.mutable_grad(), v.mutable_grad());
    out = 2 * w.sum() + 3 * v.sum();
    reducer.PrepareForBackward({out});
    out.backward();
    EXPECT_TRUE(at::allclose(w.grad(), at::full({200, 100}, 12.)));
    EXPECT_TRUE(at::allclose(v.grad(), at::full({200, 100}, 10.)));
  }
}

// Static graphs and checkpoints.

TEST(BucketedReducer, StaticGraphLeavesOutWhatIsNeverUsed) {
  test_models::Branches model;
  BucketedReducerOptions options;
  options.static_graph = true;
  BucketedReducer reducer(NamedParameters(*model), Group(), options);
  for (int step = 0; step < 4; ++step) {
    model->zero_grad();
    const bool left = Rank() % 2 == 0;  // always the same on a rank
    const at::Tensor out = model->forward(at::ones({1, 6}), left).sum();
    reducer.PrepareForBackward({out});
    out.backward();
    EXPECT_FALSE(model->never->weight.grad().defined());
    if (World() == 1) continue;
    const double share = World() == 1 ? 1 : 0.5;
    EXPECT_TRUE(at::allclose(model->left->bias.grad(), at::full({3}, share))) << step;
    EXPECT_TRUE(at::allclose(model->right->bias.grad(), at::full({3}, share))) << step;
  }
  if (World() == 1) return;
  const at::Tensor out = model->never->forward(model->stem->forward(at::ones({1, 6}))).sum();
  reducer.PrepareForBackward({out});
  ExpectError([&] { out.backward(); }, {"static_graph", "never."});
}

struct CheckpointedImpl : torch::nn::Module {
  explicit CheckpointedImpl(bool shared)
      : shared(shared),
        a(register_module("a", torch::nn::Linear(6, 6))),
        b(register_module("b", torch::nn::Linear(6, 6))) {}
  at::Tensor forward(const at::Tensor& x, bool checkpoint = true) {
    const auto first = [this](const at::Tensor& t) { return at::dropout(at::tanh(a->forward(t)), 0.5, true); };
    const auto second = [this](const at::Tensor& t) { return at::tanh((shared ? a : b)->forward(t)); };
    const at::Tensor h = checkpoint ? nn::ActivationCheckpoint(first, x) : first(x);
    const at::Tensor y = checkpoint ? nn::ActivationCheckpoint(second, h) : second(h);
    return shared ? y + b->forward(y) : y;
  }
  bool shared;
  torch::nn::Linear a, b;
};
TORCH_MODULE(Checkpointed);

TEST(BucketedReducer, ServesActivationCheckpoints) {
  for (const bool shared : {false, true}) {
    for (const std::string mode : {"plain", "find_unused", "static"}) {
      if (shared && mode != "static") continue;
      torch::manual_seed(4);
      Checkpointed model(shared);
      DistributedDataParallelOptions options;
      options.reducer = Small();
      options.reducer.find_unused_parameters = mode == "find_unused";
      options.reducer.static_graph = mode == "static";
      DistributedDataParallel ddp(model, Group(), options);
      for (int step = 0; step < 4; ++step) {
        model->zero_grad(step % 2 == 0);
        const at::Tensor x = at::full({2, 6}, 0.1 * (Rank() + 1));
        torch::manual_seed(step * 10 + Rank());
        ddp.forward(x).sum().backward();
        std::vector<at::Tensor> expected;
        for (int rank = 0; rank < World(); ++rank) {
          torch::manual_seed(step * 10 + rank);
          const auto grads = torch::autograd::grad({model->forward(at::full({2, 6}, 0.1 * (rank + 1)), false).sum()},
                                                   model->parameters());
          for (size_t i = 0; i < grads.size(); ++i) {
            if (rank == 0) expected.push_back(at::zeros_like(grads[i]));
            expected[i] += grads[i] / World();
          }
        }
        for (size_t i = 0; i < expected.size(); ++i) {
          EXPECT_TRUE(at::allclose(model->parameters()[i].grad(), expected[i], 1e-5, 1e-6)) << mode << step << " " << i;
        }
      }
    }
  }
}

TEST(BucketedReducer, ASharedCheckpointWithoutStaticGraphIsAnErrorThatSaysSo) {
  if (World() == 1) return;
  Checkpointed model(true);
  DistributedDataParallel ddp(model, Group());
  ExpectError([&] { ddp.forward(at::ones({2, 6})).sum().backward(); }, {"second gradient", "static_graph"});
}

// Weights.

TEST(BucketedReducer, WeightedBySamplesEqualsOneProcess) {
  torch::manual_seed(6);
  test_models::Mlp model, single;
  model->to(at::kDouble);
  single->to(at::kDouble);
  DistributedDataParallel ddp(model, Group());
  {
    const at::NoGradGuard no_grad;
    for (size_t i = 0; i < model->parameters().size(); ++i) single->parameters()[i].copy_(model->parameters()[i]);
  }
  const at::Tensor x = at::randn({12, 6}, at::kDouble), y = at::randint(3, {12});
  for (const std::vector<int64_t>& split : {std::vector<int64_t>{1, 11, 0, 0}, {5, 3, 4, 0}, {0, 7, 2, 3}}) {
    std::vector<int64_t> sizes(split.begin(), split.begin() + World());
    int64_t begin = 0, total = 0;
    for (int rank = 0; rank < World(); ++rank) {
      if (rank < Rank()) begin += sizes[rank];
      total += sizes[rank];
    }
    model->zero_grad();
    single->zero_grad();
    using torch::nn::functional::cross_entropy;
    ddp.SetWeight(SampleWeight(sizes[Rank()], Group()));
    // The mean over no samples is not a number, and counts for nothing.
    cross_entropy(ddp.forward(x.narrow(0, begin, sizes[Rank()])), y.narrow(0, begin, sizes[Rank()])).backward();
    cross_entropy(single->forward(x.narrow(0, 0, total)), y.narrow(0, 0, total)).backward();
    for (size_t i = 0; World() > 1 && i < model->parameters().size(); ++i) {
      EXPECT_TRUE(at::allclose(model->parameters()[i].grad(), single->parameters()[i].grad(), 1e-9, 1e-12));
    }
  }
  EXPECT_THROW(ddp.SetWeight(-1), c10::Error);
  EXPECT_THROW(ddp.SetWeight(NAN), c10::Error);
}

// Hooks.

TEST(BucketedReducer, CallsAUsersHook) {
  if (World() == 1) return;
  at::Tensor a = Leaf(at::ones({3})), b = Leaf(at::ones({2, 2}));
  BucketedReducerOptions options = Small();
  const auto hook = std::make_shared<RankHook>();
  options.hook = hook;
  BucketedReducer reducer({{"a", a}, {"b", b}}, Group(), options);
  const at::Tensor out = a.sum() + 2 * b.sum();
  reducer.PrepareForBackward({out});
  out.backward();
  EXPECT_EQ(hook->buckets, (std::vector<size_t>{0, 1}));
  EXPECT_TRUE(hook->last);
  EXPECT_EQ(hook->gradients, 1u);
  const double sum = World() * (World() + 1) / 2.;
  EXPECT_TRUE(a.grad().equal(at::full({3}, sum)));
  EXPECT_TRUE(b.grad().equal(at::full({2, 2}, 2 * sum)));
}

TEST(BucketedReducer, CompressionHooks) {
  if (World() == 1) return;
  const auto run = [](std::shared_ptr<c10d::CommHookInterface> hook, at::ScalarType dtype) {
    torch::manual_seed(20 + Rank());
    at::Tensor a = Leaf(at::ones({1000}, dtype));
    const at::Tensor gradient = at::randn({1000}).to(dtype);
    BucketedReducerOptions options;
    options.hook = std::move(hook);
    BucketedReducer reducer({{"a", a}}, Group(), options);
    for (int step = 0; step < 2; ++step) {
      a.mutable_grad().reset();
      const at::Tensor out = (a * gradient).sum();
      reducer.PrepareForBackward({out});
      out.backward();
    }
    return a.grad().clone();
  };
  const auto compressed = [&](at::ScalarType dtype, at::ScalarType of) {
    at::Tensor sum;  // by hand
    for (int rank = 0; rank < World(); ++rank) {
      torch::manual_seed(20 + rank);
      const at::Tensor part = at::randn({1000}).to(of).to(dtype).div_(World());
      sum = rank == 0 ? part : sum + part;
    }
    return sum.to(of);
  };
  using Types = std::pair<at::ScalarType, at::ScalarType>;
  for (const auto& [sent, of] :
       {Types(at::kHalf, at::kFloat), {at::kBFloat16, at::kFloat}, {at::kFloat, at::kBFloat16}}) {
    EXPECT_TRUE(
        at::allclose(run(std::make_shared<AllReduceHook>(Group(), sent), of), compressed(sent, of), 2e-2, 1e-2));
  }
  EXPECT_TRUE(run(std::make_shared<AllReduceHook>(Group()), at::kFloat).equal(run(nullptr, at::kFloat)));
  EXPECT_THROW(AllReduceHook(Group(), at::kInt), c10::Error);
}

}  // namespace
}  // namespace lockstep
