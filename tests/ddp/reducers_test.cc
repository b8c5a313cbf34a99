// What holds for every Reducer, whoever made it.

#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/jit/serialization/import.h>
#include <torch/jit.h>
#include <torch/optim/adam.h>
#include <torch/utils.h>

#include "expect_error.h"
#include "lockstep/comm/process_group.h"
#include "lockstep/ddp/after_backward_reducer.h"
#include "lockstep/ddp/bucketed_reducer.h"
#include "lockstep/ddp/distributed_data_parallel.h"
#include "lockstep/ddp/named_parameters.h"
#include "lockstep/ddp/torch_reducer.h"
#include "test_models.h"

namespace lockstep {
namespace {

const ProcessGroupPtr& Group() {
  static const ProcessGroupPtr group = InitProcessGroup().value();
  return group;
}

using Make = std::function<std::unique_ptr<Reducer>(std::vector<NamedParameter>, const ProcessGroupPtr&)>;

template <typename R>
std::unique_ptr<Reducer> MakeReducer(std::vector<NamedParameter> parameters, const ProcessGroupPtr& group) {
  return std::make_unique<R>(std::move(parameters), group);
}

class EveryReducer : public testing::TestWithParam<std::pair<const char*, Make>> {
 protected:
  DistributedDataParallelOptions Options() const {
    DistributedDataParallelOptions options;
    options.make_reducer = GetParam().second;
    return options;
  }
};
INSTANTIATE_TEST_SUITE_P(, EveryReducer,
                         testing::Values(std::pair("BucketedReducer", Make(MakeReducer<BucketedReducer>)),
                                         std::pair("AfterBackwardReducer", Make(MakeReducer<AfterBackwardReducer>)),
                                         std::pair("TorchReducer", Make(MakeReducer<TorchReducer>))),
                         [](const auto& info) { return info.param.first; });

TEST_P(EveryReducer, AveragesAndAccumulates) {
  const int rank = GetRank(Group()), world = GetWorldSize(Group());
  torch::manual_seed(1);
  test_models::Mlp model;
  DistributedDataParallel ddp(model, Group(), Options());
  torch::optim::Adam optimizer(ddp.parameters(), torch::optim::AdamOptions(1e-2));
  torch::manual_seed(2);
  for (int step = 0; step < 6; ++step) {
    optimizer.zero_grad(step % 2 == 0);
    const at::Tensor x = at::randn({world * 2, 4, 6});
    {
      const decltype(ddp)::NoSync no_sync(ddp);
      ddp.forward(x[rank * 2]).square().mean().backward();
    }
    ddp.forward(x[rank * 2 + 1]).square().mean().backward();
    at::Tensor loss = at::zeros({});
    for (int64_t i = 0; i < x.size(0); ++i) loss = loss + model->forward(x[i]).square().mean();
    const auto expected = torch::autograd::grad({loss / world}, model->parameters());
    for (size_t i = 0; i < expected.size(); ++i) {
      EXPECT_TRUE(at::allclose(model->parameters()[i].grad(), expected[i], 1e-4, 1e-6)) << step;
    }
    optimizer.step();
  }
  ddp.CheckParametersEqual();
}

TEST_P(EveryReducer, RefusesNothingToTrain) {
  EXPECT_THROW(GetParam().second({}, Group()), c10::Error);
  EXPECT_THROW(GetParam().second({{"frozen", at::ones({1})}}, Group()), c10::Error);
}

TEST_P(EveryReducer, DoesNothingAlone) {
  at::Tensor a = at::ones({2}).requires_grad_();
  const auto reducer = GetParam().second({{"a", a}}, nullptr);
  const at::Tensor out = (a * 3).sum();
  reducer->PrepareForBackward({out});
  reducer->PrepareForAccumulation({out});
  out.backward();
  reducer->Abandon("nothing is under way");
  EXPECT_TRUE(a.grad().equal(at::full({2}, 3.)));
}

TEST_P(EveryReducer, ServesATorchScriptModule) {
  torch::jit::Module module("mine");
  module.register_parameter("weight", at::ones({2, 3}).requires_grad_(), /*is_buffer=*/false);
  module.define("def forward(self, x):\n    return torch.matmul(self.weight, x)\n");
  const auto parameters = NamedParameters(module);
  ASSERT_EQ(parameters.size(), 1u);
  EXPECT_EQ(parameters[0].name, "weight");
  const auto reducer = GetParam().second(parameters, Group());
  const at::Tensor out = module.forward({at::full({3}, GetRank(Group()) + 1.)}).toTensor();
  reducer->PrepareForBackward({out});
  out.sum().backward();
  const at::Tensor grad = module.attr("weight").toTensor().grad();
  EXPECT_TRUE(at::allclose(grad, at::full({2, 3}, (GetWorldSize(Group()) + 1) / 2.)));
}

TEST(AfterBackwardReducer, ABackwardThatThrowsOnOneRankEndsOnAll) {
  if (GetWorldSize(Group()) == 1) return;
  const int rank = GetRank(Group());
  at::Tensor a = at::ones({3}).requires_grad_(), b = at::ones({2}, at::kDouble).requires_grad_();
  AfterBackwardReducer reducer({{"a", a}, {"b", b}}, Group());
  at::Tensor inner = a * 2;
  if (rank == 1) inner.register_hook([](const at::Tensor&) -> at::Tensor { throw std::runtime_error("out of luck"); });
  at::Tensor out = inner.sum() + b.sum();
  reducer.PrepareForBackward({out});
  if (rank == 1) {
    ExpectError([&] { out.backward(); }, {"out of luck"});
    ExpectError([&] { reducer.PrepareForBackward({}); }, {"rank 1: the last backward"});
  } else {
    ExpectError([&] { out.backward(); }, {"rank 1: the last backward"});
  }
  a.mutable_grad().reset();
  out = a.sum() + b.sum();
  reducer.PrepareForBackward({out});
  out.backward();
  EXPECT_TRUE(at::allclose(a.grad(), at::ones({3})));
}

TEST(AfterBackwardReducer, WeightsAndMissingGradients) {
  const int rank = GetRank(Group()), world = GetWorldSize(Group());
  at::Tensor a = at::ones({3}).requires_grad_(), b = at::ones({2}).requires_grad_();
  AfterBackwardReducer reducer({{"a", a}, {"b", b}}, Group());
  reducer.SetWeight(rank == 0 ? 0 : 1);
  const at::Tensor out = (a * (rank == 0 ? NAN : rank)).sum();
  reducer.PrepareForBackward({out});
  out.backward();
  if (world == 1) return;
  EXPECT_TRUE(a.grad().equal(at::full({3}, world * (world - 1) / 2.)));
  EXPECT_TRUE(b.grad().equal(at::zeros({2})));
}

TEST(TorchReducer, SaysWhatItCannot) {
  at::Tensor a = at::ones({3}).requires_grad_();
  TorchReducer reducer({{"a", a}}, Group());
  reducer.SetWeight(std::nullopt);
  ExpectError([&] { reducer.SetWeight(0.5); }, {"no weights"});
}

}  // namespace
}  // namespace lockstep
