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

#include "lockstep/comm/process_group.h"
#include "lockstep/models/conv_net.h"
#include "lockstep/nn/batch_norm.h"

namespace lockstep {
namespace {

const ProcessGroupPtr& Group() {
  static const ProcessGroupPtr group = InitProcessGroup().value();
  return group;
}

struct MlpImpl : torch::nn::Module {
  MlpImpl() : a(register_module("a", torch::nn::Linear(6, 16))), b(register_module("b", torch::nn::Linear(16, 3))) {}
  at::Tensor forward(const at::Tensor& x) { return b->forward(torch::relu(a->forward(x))); }
  torch::nn::Linear a, b;
};
TORCH_MODULE(Mlp);

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
