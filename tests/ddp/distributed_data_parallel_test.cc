#include "lockstep/ddp/distributed_data_parallel.h"

#include <ATen/Functions.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/nn/functional/loss.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/adam.h>
#include <torch/optim/sgd.h>
#include <torch/utils.h>

#include <cstdlib>

#include "expect_error.h"
#include "lockstep/comm/process_group.h"
#include "lockstep/ddp/parameter_sync.h"
#include "lockstep/models/conv_net.h"
#include "lockstep/nn/batch_norm.h"
#include "test_models.h"

namespace lockstep {
namespace {

const ProcessGroupPtr& Group() {
  static const ProcessGroupPtr group = InitProcessGroup().value();
  return group;
}

using test_models::Mlp;

/// Small buckets, so that several take part.
DistributedDataParallelOptions SmallBuckets() {
  DistributedDataParallelOptions options;
  options.reducer.bucket_cap_bytes = 1000;
  options.reducer.first_bucket_cap_bytes = 100;
  return options;
}

template <typename Holder>
void ExpectGradientsOfOneProcess(const at::Tensor& input, const at::Tensor& target, bool sync_batch_norm) {
  const int rank = GetRank(Group()), world = GetWorldSize(Group());
  torch::manual_seed(1206);
  Holder single;
  torch::manual_seed(1206);
  Holder model;
  single->to(at::kDouble);
  model->to(at::kDouble);
  if (sync_batch_norm) {
    ASSERT_TRUE(nn::ConvertSyncBatchNorm(*model, Group()).ok());
  }
  DistributedDataParallel ddp(model, Group(), SmallBuckets());
  torch::optim::SGD optimizer(ddp.parameters(), torch::optim::SGDOptions(0.1));
  torch::optim::SGD reference(single->parameters(), torch::optim::SGDOptions(0.1));
  const int64_t share = input.size(0) / world;
  for (int step = 0; step < 4; ++step) {
    const bool to_none = step % 2 == 0;  // both habits of zero_grad
    optimizer.zero_grad(to_none);
    reference.zero_grad(to_none);
    using torch::nn::functional::cross_entropy;
    cross_entropy(ddp.forward(input.narrow(0, rank * share, share)), target.narrow(0, rank * share, share)).backward();
    cross_entropy(single->forward(input), target).backward();
    for (const auto& item : single->named_parameters()) {
      const at::Tensor grad = ddp.named_parameters()[item.key()].grad();
      EXPECT_TRUE(at::allclose(grad, item.value().grad(), 1e-6, 1e-9)) << item.key() << " step " << step;
    }
    optimizer.step();
    reference.step();
  }
}

TEST(DistributedDataParallel, GradientsEqualOneProcessOnTheWholeBatch) {
  torch::manual_seed(5);
  ExpectGradientsOfOneProcess<Mlp>(at::randn({12, 6}, at::kDouble), at::randint(3, {12}), false);
}

TEST(DistributedDataParallel, GradientsOfConvNetWithSyncBatchNormEqualOneProcess) {
  torch::manual_seed(6);
  ExpectGradientsOfOneProcess<models::ConvNet>(at::rand({16, 1, 28, 28}, at::kDouble), at::randint(10, {16}), true);
}

TEST(DistributedDataParallel, ParametersStayEqualBitForBit) {
  torch::manual_seed(100 + GetRank(Group()));  // other weights and other data on each rank
  Mlp model;
  DistributedDataParallel ddp(model, Group(), SmallBuckets());
  torch::optim::Adam optimizer(ddp.parameters(), torch::optim::AdamOptions(1e-2));
  for (int step = 0; step < 300; ++step) {
    optimizer.zero_grad();
    ddp.forward(at::randn({4, 6})).square().mean().backward();
    optimizer.step();
  }
  for (const auto& parameter : ddp.parameters()) {
    for (const auto& other : AllGather(parameter.detach().contiguous(), Group())) EXPECT_TRUE(other.equal(parameter));
  }
}

TEST(DistributedDataParallel, NamesHaveNoPrefixAndTrainReachesTheModule) {
  models::ConvNet model;
  DistributedDataParallel ddp(model, Group());
  EXPECT_EQ(ddp.named_parameters().keys(), model->named_parameters().keys());
  EXPECT_EQ(ddp.named_buffers().keys(), model->named_buffers().keys());
  EXPECT_TRUE(ddp.parameters()[0].is_same(model->parameters()[0]));
  ddp.eval();
  EXPECT_FALSE(model->is_training());
  EXPECT_FALSE(model->layer1->is_training());
  ddp.train();
  EXPECT_TRUE(model->is_training());
}

TEST(DistributedDataParallel, AveragesInEvaluationModeToo) {
  torch::manual_seed(8);
  Mlp model;
  DistributedDataParallel ddp(model, Group(), SmallBuckets());
  ddp.eval();
  ddp.forward(at::full({1, 6}, GetRank(Group()) + 1.)).sum().backward();
  for (const auto& p : ddp.parameters()) {
    for (const auto& other : AllGather(p.grad().contiguous(), Group())) EXPECT_TRUE(other.equal(p.grad()));
  }
}

TEST(DistributedDataParallel, WrappingChangesNoModes) {
  models::ConvNet model;
  model->layer1->eval();
  DistributedDataParallel ddp(model, Group());
  EXPECT_FALSE(model->layer1->is_training());
  EXPECT_TRUE(model->layer2->is_training());
  EXPECT_TRUE(ddp.is_training());
}

TEST(DistributedDataParallel, ABackwardThatThrowsIsReportedOnceAndForgotten) {
  if (GetWorldSize(Group()) == 1) return;
  Mlp model;
  DistributedDataParallel ddp(model, Group(), SmallBuckets());
  at::Tensor out = ddp.forward(at::rand({2, 6}));
  const auto hook =
      ddp.parameters()[0].register_hook([](const at::Tensor&) -> at::Tensor { throw std::runtime_error("no"); });
  EXPECT_THROW(out.sum().backward(), std::exception);
  ddp.parameters()[0].remove_hook(hook);
  EXPECT_THROW(ddp.forward(at::rand({2, 6})), c10::Error);
  ddp.forward(at::rand({2, 6})).sum().backward();
  EXPECT_TRUE(ddp.parameters()[0].grad().defined());
}

TEST(DistributedDataParallel, EvaluationCommunicatesNothing) {
  Mlp model;
  DistributedDataParallel ddp(model, Group());
  ddp.eval();
  if (GetRank(Group()) == 0) ddp.forward(at::rand({1, 6}));  // alone: it would hang
  ddp.train();
  const at::NoGradGuard no_grad;
  if (GetRank(Group()) == 0) ddp.forward(at::rand({1, 6}));
}

TEST(DistributedDataParallel, GradientsAccumulateWithoutSync) {
  const int rank = GetRank(Group()), world = GetWorldSize(Group());
  torch::manual_seed(7);
  Mlp model;
  model->to(at::kDouble);
  DistributedDataParallel ddp(model, Group(), SmallBuckets());
  const at::Tensor x = at::randn({world * 3, 2, 6}, at::kDouble);
  for (bool to_none : {true, false}) {
    for (auto& p : ddp.parameters()) {
      if (to_none) {
        p.mutable_grad() = at::Tensor();
      } else if (p.grad().defined()) {
        p.mutable_grad().zero_();
      }
    }
    {
      const decltype(ddp)::NoSync no_sync(ddp);
      for (int i : {0, 1}) ddp.forward(x[rank * 3 + i]).sum().backward();
    }
    ddp.forward(x[rank * 3 + 2]).sum().backward();
    const auto expected = torch::autograd::grad({model->forward(x).sum() / world}, ddp.parameters());
    for (size_t i = 0; i < expected.size(); ++i) EXPECT_TRUE(at::allclose(ddp.parameters()[i].grad(), expected[i]));
  }
}

struct BranchesImpl : torch::nn::Module {
  BranchesImpl()
      : used(register_module("used", torch::nn::Linear(2, 2))),
        unused(register_module("unused", torch::nn::Linear(2, 2))) {}
  at::Tensor forward(const at::Tensor& x, bool all) {
    return all ? unused->forward(used->forward(x)) : used->forward(x);
  }
  torch::nn::Linear used, unused;
};
TORCH_MODULE(Branches);

TEST(DistributedDataParallel, NamesParametersWithoutGradient) {
  if (GetWorldSize(Group()) == 1) return;  // nothing is reduced
  Branches model;
  DistributedDataParallel ddp(model, Group());
  try {
    ddp.forward(at::rand({1, 2}), false).sum().backward();
    FAIL() << "no error";
  } catch (const std::exception& e) {
    EXPECT_NE(std::string(e.what()).find("unused.weight, unused.bias"), std::string::npos) << e.what();
    EXPECT_EQ(std::string(e.what()).find(" used.weight"), std::string::npos) << e.what();
  }
  ddp.forward(at::rand({1, 2}), true).sum().backward();  // and it goes on
}

TEST(DistributedDataParallel, NamesTheFirstParameterThatDiffersBetweenRanks) {
  if (GetWorldSize(Group()) == 1) return;
  torch::nn::Sequential model(torch::nn::Linear(2, 2), torch::nn::Linear(2, GetRank(Group()) == 1 ? 3 : 2));
  try {
    DistributedDataParallel ddp(model, Group());
    FAIL() << "no error";
  } catch (const std::exception& e) {
    EXPECT_NE(std::string(e.what()).find("rank 1 has 1.weight Float[3, 2]"), std::string::npos) << e.what();
  }
}

TEST(DistributedDataParallel, RefusesAModuleWithoutParameters) {
  EXPECT_THROW(DistributedDataParallel(torch::nn::ReLU(), Group()), c10::Error);
}

TEST(DistributedDataParallel, BuffersComeFromRankZero) {
  nn::BatchNorm1d model(2);
  DistributedDataParallel ddp(model, Group());
  for (int i = 0; i < 2; ++i) ddp.forward(at::randn({8, 2}) + GetRank(Group())).sum().backward();
  ddp.SyncBuffers();
  for (const auto& other : AllGather(model->running_mean, Group())) EXPECT_TRUE(other.equal(model->running_mean));
}

// Outputs of every shape.

namespace outputs {
struct Mine {
  at::Tensor logits;
  std::optional<at::Tensor> more;
};
void VisitTensors(const Mine& mine, const TensorVisitor& visit) {
  visit(mine.logits);
  if (mine.more) visit(*mine.more);
}
struct Opaque {
  at::Tensor hidden;
};
}  // namespace outputs

/// A linear layer whose output is wrapped by `Wrap`, and a layer that is not used.
template <typename Wrap>
struct WrappedImpl : torch::nn::Module {
  explicit WrappedImpl(Wrap wrap)
      : linear(register_module("linear", torch::nn::Linear(2, 2))),
        unused(register_module("unused", torch::nn::Linear(2, 2))),
        wrap(wrap) {}
  auto forward(const at::Tensor& x) { return wrap(linear->forward(x)); }
  torch::nn::Linear linear, unused;
  Wrap wrap;
};

template <typename Wrap, typename Unwrap>
void ExpectServed(Wrap wrap, Unwrap unwrap) {
  for (bool find_unused : {true, false}) {
    auto model = std::make_shared<WrappedImpl<Wrap>>(wrap);
    if (!find_unused) {
      for (auto& p : model->unused->parameters()) p.requires_grad_(false);
    }
    DistributedDataParallelOptions options;
    options.reducer.find_unused_parameters = find_unused;
    DistributedDataParallel<WrappedImpl<Wrap>> ddp(model, Group(), options);
    for (int step = 0; step < 2; ++step) {
      model->zero_grad();
      // Two forwards, and the second backward belongs to the first: only the outputs can tell.
      auto first = ddp.forward(at::full({1, 2}, GetRank(Group()) + 1.));
      auto second = ddp.forward(at::full({1, 2}, 1.));
      unwrap(second).sum().backward();
      unwrap(first).sum().backward();
      EXPECT_TRUE(at::allclose(model->linear->weight.grad(), at::full({2, 2}, 1 + (GetWorldSize(Group()) + 1) / 2.)));
      EXPECT_FALSE(model->unused->weight.grad().defined());
    }
  }
}

TEST(DistributedDataParallel, FindsTensorsInWhatForwardReturns) {
  using T = at::Tensor;
  ExpectServed([](T t) { return t; }, [](T t) { return t; });
  ExpectServed([](T t) { return std::vector<T>{at::ones({1}), t}; }, [](auto& v) { return v[1]; });
  ExpectServed([](T t) { return std::array<T, 1>{t}; }, [](auto& v) { return v[0]; });
  ExpectServed([](T t) { return std::make_tuple(1, std::string("x"), t); }, [](auto& v) { return std::get<2>(v); });
  ExpectServed([](T t) { return std::make_pair(T(), t); }, [](auto& v) { return v.second; });
  ExpectServed([](T t) { return std::optional<T>(t); }, [](auto& v) { return *v; });
  ExpectServed([](T t) { return std::map<std::string, T>{{"out", t}}; }, [](auto& v) { return v["out"]; });
  ExpectServed([](T t) { return std::unordered_map<int, std::vector<T>>{{1, {t}}}; }, [](auto& v) { return v[1][0]; });
  ExpectServed([](T t) { return outputs::Mine{t, std::nullopt}; }, [](auto& v) { return v.logits; });
  ExpectServed([](T t) { return std::vector<outputs::Mine>{{T(), t}}; }, [](auto& v) { return *v[0].more; });
}

TEST(DistributedDataParallel, ATypeThatItCannotLookIntoIsAnErrorWhereItMatters) {
  const auto wrap = [](at::Tensor t) { return std::vector<outputs::Opaque>{{t}}; };
  auto model = std::make_shared<WrappedImpl<decltype(wrap)>>(wrap);
  {
    for (auto& p : model->unused->parameters()) p.requires_grad_(false);
    DistributedDataParallel<WrappedImpl<decltype(wrap)>> ddp(model, Group());
    ddp.forward(at::ones({1, 2}))[0].hidden.sum().backward();
  }
  if (GetWorldSize(Group()) == 1) return;
  DistributedDataParallelOptions options;
  options.reducer.find_unused_parameters = true;
  DistributedDataParallel<WrappedImpl<decltype(wrap)>> ddp(model, Group(), options);
  ExpectError([&] { ddp.forward(at::ones({1, 2})); }, {"outputs::Opaque", "VisitTensors(const "});
}

struct VoidImpl : torch::nn::Module {
  VoidImpl() : linear(register_module("linear", torch::nn::Linear(2, 2))) {}
  void forward(const at::Tensor& x, at::Tensor& out) { out = linear->forward(x); }
  torch::nn::Linear linear;
};

TEST(DistributedDataParallel, ForwardMayReturnNothing) {
  DistributedDataParallel<VoidImpl> ddp(std::make_shared<VoidImpl>(), Group());
  at::Tensor out;
  ddp.forward(at::full({1, 2}, GetRank(Group()) + 1.), out);
  out.sum().backward();
  EXPECT_TRUE(at::allclose(ddp.parameters()[0].grad(), at::full({2, 2}, (GetWorldSize(Group()) + 1) / 2.)));
}

// What is left out, and what doesn't fit.

TEST(DistributedDataParallel, LeavesIgnoredParametersAndBuffersAlone) {
  if (GetWorldSize(Group()) == 1) return;
  torch::manual_seed(100 + GetRank(Group()));
  torch::nn::Sequential model(torch::nn::Linear(2, 2), torch::nn::Linear(2, 2 + GetRank(Group())));
  DistributedDataParallelOptions options;
  options.ignored = {"1.weight", "1.bias"};
  DistributedDataParallel ddp(model, Group(), options);
  const at::Tensor x = at::full({1, 2}, 1.);
  ddp.forward(x).sum().backward();
  const at::Tensor mine = model->parameters()[3].grad();
  EXPECT_TRUE(mine.equal(at::ones_like(mine)));
  for (const auto& other : AllGather(model->parameters()[0].grad(), Group())) {
    EXPECT_TRUE(other.equal(model->parameters()[0].grad()));
  }
  options.ignored = {"2.weight"};
  ExpectError([&] { DistributedDataParallel again(model, Group(), options); }, {"named 2.weight"});
}

TEST(DistributedDataParallel, NamesAllRanksThatDiffer) {
  if (GetWorldSize(Group()) < 4) return;
  const auto make = [](int64_t out, bool frozen) {
    torch::nn::Linear linear(2, out);
    linear->bias.set_requires_grad(!frozen);
    return linear;
  };
  ExpectError([&] { DistributedDataParallel ddp(make(GetRank(Group()) >= 2 ? 3 : 2, false), Group()); },
              {"rank 0 has weight Float[2, 2]", "ranks 2, 3 have weight Float[3, 2]"});
  ExpectError([&] { DistributedDataParallel ddp(make(2, GetRank(Group()) == 3), Group()); },
              {"rank 3 has bias Float[2] strides [1] frozen"});
}

TEST(DistributedDataParallel, RefusesOtherOptionsOnARank) {
  if (GetWorldSize(Group()) == 1) return;
  DistributedDataParallelOptions options;
  options.reducer.find_unused_parameters = GetRank(Group()) == 1;
  ExpectError([&] { DistributedDataParallel ddp(torch::nn::Linear(2, 2), Group(), options); },
              {"rank 1 has the options", "find_unused_parameters 1"});
}

TEST(DistributedDataParallel, RefusesTwoTypesOfDevice) {
  torch::nn::Sequential model(torch::nn::Linear(2, 2), torch::nn::Linear(2, 2));
  model->ptr<torch::nn::LinearImpl>(1)->weight = model[1]->register_parameter("meta", at::empty({2, 2}, at::kMeta));
  ExpectError([&] { DistributedDataParallel ddp(model, Group()); },
              {"two types of device", "0.weight on cpu", "1.meta on meta"});
}

TEST(DistributedDataParallel, RefusesAnExpandedParameter) {
  torch::nn::Linear model(2, 2);
  model->weight.set_data(at::ones({1, 2}).expand({2, 2}));
  ExpectError([&] { DistributedDataParallel ddp(model, Group()); }, {"weight is expanded"});
}

TEST(DistributedDataParallel, RefusesNothing) {
  ExpectError([] { DistributedDataParallel<VoidImpl> ddp(std::shared_ptr<VoidImpl>(), Group()); }, {"null"});
}

TEST(DistributedDataParallel, ChecksThatParametersAreStillEqual) {
  test_models::Mlp model;
  DistributedDataParallel ddp(model, Group());
  ddp.CheckParametersEqual();
  if (GetWorldSize(Group()) == 1) return;
  {
    const at::NoGradGuard no_grad;
    if (GetRank(Group()) == 1) model->b->bias[0] = std::nextafter(model->b->bias[0].item<float>(), 10.f);
  }
  ExpectError([&] { ddp.CheckParametersEqual(); }, {"b.bias on rank 1"});
  const double sign = GetRank(Group()) == 1 ? -1 : 1;  // differences that would cancel in a sum
  for (const at::Tensor& t : {at::tensor({1., sign}, at::kDouble), at::tensor({sign, sign, -sign}),
                              at::tensor({0., 0. * sign}, at::kDouble)}) {
    ExpectError([&] { CheckParametersEqual({{"t", t}}, Group()); }, {"t on rank 1"});
  }
  for (const auto dtype : {at::kDouble, at::kHalf, at::kBFloat16, at::kComplexFloat, at::kLong, at::kByte}) {
    const at::Tensor t = at::ones({2, 3}, dtype).t();
    CheckParametersEqual({{"t", t}}, Group());
    const at::Tensor other = GetRank(Group()) == 1 ? t.t().clone() * 2 : t;
    ExpectError([&] { CheckParametersEqual({{"t", other}}, Group()); }, {"t on rank 1"});
  }
}

TEST(BucketedReducer, ServesSeveralDtypesFrozenAndSharedParameters) {
  const int rank = GetRank(Group()), world = GetWorldSize(Group());
  at::Tensor a = at::ones({3}).requires_grad_(), b = at::ones({2}, at::kDouble).requires_grad_(),
             frozen = at::ones({2});
  BucketedReducer reducer({{"a", a}, {"b", b}, {"frozen", frozen}, {"a_again", a}}, Group());
  reducer.PrepareForBackward({});
  ((a * (rank + 1)).sum() + (a * 1).sum() + (b * rank).sum()).backward();
  EXPECT_NEAR(a.grad()[0].item<double>(), (world > 1 ? (world + 1) / 2. : 1) + 1, 1e-6);
  EXPECT_NEAR(b.grad()[0].item<double>(), (world - 1) / 2., 1e-12);
  if (world > 1) {
    EXPECT_EQ(reducer.num_buckets(), 2u);
    // A backward that was announced as such stays this rank's own.
    a.mutable_grad().zero_();
    reducer.PrepareForAccumulation({});
    (a * rank).sum().backward();
    EXPECT_EQ(a.grad()[0].item<double>(), rank);
  }
}

}  // namespace
}  // namespace lockstep
