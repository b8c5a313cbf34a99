#include "lockstep/ddp/sharded_optimizer.h"

#include <gtest/gtest.h>
#include <torch/nn/functional/loss.h>
#include <torch/optim/adam.h>
#include <torch/optim/schedulers/step_lr.h>
#include <torch/optim/sgd.h>
#include <torch/utils.h>

#include "expect_error.h"
#include "lockstep/comm/process_group.h"
#include "lockstep/ddp/distributed_data_parallel.h"
#include "lockstep/models/conv_net.h"
#include "lockstep/nn/channels_last.h"
#include "test_models.h"

namespace lockstep {
namespace {

const ProcessGroupPtr& Group() {
  static const ProcessGroupPtr group = InitProcessGroup().value();
  return group;
}

DistributedDataParallelOptions Sharded(ShardedReducer*& reducer) {
  DistributedDataParallelOptions options;
  options.make_reducer = [&reducer](auto parameters, const auto& group) {
    auto made = std::make_unique<ShardedReducer>(std::move(parameters), group);
    reducer = made.get();
    return made;
  };
  return options;
}

template <typename Inner, typename Options>
void ExpectPlainDataParallelism(const Options& options, bool accumulate) {
  torch::manual_seed(1);
  models::ConvNet ours, plain;
  nn::ToChannelsLast(*ours);
  for (size_t i = 0; i < ours->parameters().size(); ++i) plain->parameters()[i].set_data(ours->parameters()[i].clone());
  ShardedReducer* reducer = nullptr;
  DistributedDataParallel a(ours, Group(), Sharded(reducer)), b(plain, Group());
  ShardedOptimizer<Inner> sharded(*reducer, options);
  Inner whole(b.parameters(), options);
  torch::optim::StepLR schedule_a(sharded, 2, 0.5), schedule_b(whole, 2, 0.5);
  torch::manual_seed(10 + GetRank(Group()));
  for (int step = 0; step < 6; ++step) {
    sharded.zero_grad(step % 2 == 0);
    whole.zero_grad(step % 2 == 0);
    const at::Tensor x = at::randn({8, 1, 28, 28}), y = at::randint(10, {8});
    const auto backward = [&](auto& ddp, const at::Tensor& in) {
      torch::nn::functional::cross_entropy(ddp.forward(in), y).backward();
    };
    if (accumulate) {
      const DistributedDataParallelBase::NoSync no_sync_a(a), no_sync_b(b);
      backward(a, x * 0.5);
      backward(b, x * 0.5);
    }
    backward(a, x);
    backward(b, x);
    sharded.step();
    whole.step();
    schedule_a.step();
    schedule_b.step();
  }
  for (const auto& item : ours->named_parameters()) {
    EXPECT_TRUE(at::allclose(item.value(), plain->named_parameters()[item.key()], 1e-5, 1e-6)) << item.key();
  }
  a.CheckParametersEqual();
}

TEST(ShardedOptimizer, GivesTheParametersOfPlainDataParallelism) {
  for (bool accumulate : {false, true}) {
    ExpectPlainDataParallelism<torch::optim::SGD>(torch::optim::SGDOptions(0.05).momentum(0.9).weight_decay(1e-3),
                                                  accumulate);
    ExpectPlainDataParallelism<torch::optim::Adam>(torch::optim::AdamOptions(1e-3).weight_decay(1e-3), accumulate);
  }
}

TEST(ShardedOptimizer, KeepsItsShareOfTheState) {
  test_models::Mlp model(64, 64, 64);
  int64_t all = 0;
  for (const auto& parameter : model->parameters()) all += parameter.numel();
  ShardedReducer* reducer = nullptr;
  DistributedDataParallel ddp(model, Group(), Sharded(reducer));
  ShardedOptimizer<torch::optim::Adam> optimizer(*reducer, torch::optim::AdamOptions(1e-3));
  ddp.forward(at::ones({1, 64})).sum().backward();
  optimizer.step();
  int64_t elements = 0;
  for (const auto& [parameter, state] : optimizer.state()) {
    const auto& adam = static_cast<const torch::optim::AdamParamState&>(*state);
    elements += adam.exp_avg().numel() + adam.exp_avg_sq().numel();
  }
  const int64_t world = GetWorldSize(Group());
  EXPECT_LE(elements, 2 * ((all + world - 1) / world));
  int64_t covered = 0;
  for (const auto& piece : reducer->shard()) {
    EXPECT_EQ(piece.tensor.numel(), piece.length);
    covered += piece.length;
  }
  at::Tensor total = at::scalar_tensor(covered, at::kLong);
  AllReduce(total, Group());
  EXPECT_EQ(total.item<int64_t>(), all);  // every element once
}

TEST(ShardedOptimizer, TakesGroupsOfPieces) {
  test_models::Mlp model;
  const auto before = model->a->weight.detach().clone();
  ShardedReducer* reducer = nullptr;
  DistributedDataParallel ddp(model, Group(), Sharded(reducer));
  std::vector<at::Tensor> frozen, trained;
  for (const auto& piece : reducer->shard()) {
    (reducer->parameters()[piece.parameter].name == "a.weight" ? frozen : trained).push_back(piece.tensor);
  }
  std::vector<torch::optim::OptimizerParamGroup> groups;
  groups.emplace_back(frozen, std::make_unique<torch::optim::SGDOptions>(0.));
  groups.emplace_back(trained, std::make_unique<torch::optim::SGDOptions>(1.));
  ShardedOptimizer<torch::optim::SGD> optimizer(*reducer, groups, torch::optim::SGDOptions(1.));
  const at::Tensor bias = model->b->bias.detach().clone();
  ddp.forward(at::ones({1, 6})).sum().backward();
  optimizer.step();
  EXPECT_TRUE(model->a->weight.equal(AllGather(before, Group())[0]));
  EXPECT_TRUE(at::allclose(model->b->bias.detach(), AllGather(bias, Group())[0] - 1));
  ddp.CheckParametersEqual();
}

TEST(ShardedReducer, AnExceptionOnOneRankEndsOnAll) {
  if (GetWorldSize(Group()) == 1) return;
  at::Tensor a = at::ones({3}).requires_grad_();
  ShardedReducer reducer({{"a", a}}, Group());
  at::Tensor inner = a * 2;
  if (GetRank(Group()) == 1) {
    inner.register_hook([](const at::Tensor&) -> at::Tensor { throw std::runtime_error("out of luck"); });
  }
  const at::Tensor out = inner.sum();
  reducer.PrepareForBackward({out});
  if (GetRank(Group()) == 1) {
    ExpectError([&] { out.backward(); }, {"out of luck"});
    ExpectError([&] { reducer.Abandon("out of luck"); }, {"rank 1: out of luck"});
  } else {
    ExpectError([&] { out.backward(); }, {"rank 1: out of luck"});
  }
}

}  // namespace
}  // namespace lockstep
