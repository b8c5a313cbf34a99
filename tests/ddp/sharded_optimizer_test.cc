#include "lockstep/ddp/sharded_optimizer.h"

#include <gtest/gtest.h>
#include <torch/nn/functional/loss.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/schedulers/step_lr.h>
#include <torch/optim/sgd.h>
#include <torch/utils.h>
#include <unistd.h>

#include <cstdlib>

#include "expect_error.h"
#include "lockstep/checkpoint/pth.h"
#include "lockstep/checkpoint/state_dict.h"
#include "lockstep/comm/texts.h"
#include "lockstep/comm/process_group.h"
#include "lockstep/ddp/distributed_data_parallel.h"
#include "lockstep/models/conv_net.h"
#include "lockstep/nn/channels_last.h"
#include "test_models.h"

namespace lockstep {
namespace {

std::string Temporary(const std::string& name) {
  const char* const folder = std::getenv("TEST_TMPDIR");
  return std::string(folder == nullptr ? "/tmp" : folder) + "/" + name + std::to_string(getpid());
}

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

/// The state as one over whole parameters, read back by plain and sharded optimizers, continues alike.
template <typename Inner, typename Options>
void ExpectWholeState(const Options& options, bool groups) {
  const auto make = [](models::ConvNet& net) {
    torch::manual_seed(1);
    net = models::ConvNet();
    nn::ToChannelsLast(*net);
  };
  models::ConvNet first_net{nullptr}, second_net{nullptr}, plain_net{nullptr};
  for (auto* net : {&first_net, &second_net, &plain_net}) make(*net);
  ShardedReducer *first_reducer = nullptr, *second_reducer = nullptr;
  DistributedDataParallel first(first_net, Group(), Sharded(first_reducer)),
      second(second_net, Group(), Sharded(second_reducer)), plain(plain_net, Group());
  const auto optimizer = [&](ShardedReducer& reducer) {
    if (!groups) return std::make_unique<ShardedOptimizer<Inner>>(reducer, options);
    std::vector<at::Tensor> of[2];
    for (const auto& piece : reducer.shard()) {
      of[reducer.parameters()[piece.parameter].name.find("bias") == std::string::npos].push_back(piece.tensor);
    }
    std::vector<torch::optim::OptimizerParamGroup> list;
    for (const auto& tensors : of) list.emplace_back(tensors, std::make_unique<Options>(options));
    return std::make_unique<ShardedOptimizer<Inner>>(reducer, std::move(list), options);
  };
  const auto a = optimizer(*first_reducer), b = optimizer(*second_reducer);
  std::vector<at::Tensor> of[2];
  for (const auto& item : plain_net->named_parameters()) {
    of[groups && item.key().find("bias") == std::string::npos].push_back(item.value());
  }
  std::vector<torch::optim::OptimizerParamGroup> list;
  for (int g = 0; g < (groups ? 2 : 1); ++g) list.emplace_back(of[g], std::make_unique<Options>(options));
  Inner c(list, options);
  torch::manual_seed(10 + GetRank(Group()));
  const auto step = [&](auto& ddp, auto& optimizer, const at::Tensor& x, const at::Tensor& y) {
    optimizer.zero_grad();
    torch::nn::functional::cross_entropy(ddp.forward(x), y).backward();
    optimizer.step();
  };
  for (int i = 0; i < 3; ++i) {
    const at::Tensor x = at::randn({8, 1, 28, 28}), y = at::randint(10, {8});
    step(first, *a, x, y);
    step(plain, c, x, y);
  }
  auto whole = a->WholeState();
  ASSERT_TRUE(whole.ok()) << whole.status();
  EXPECT_TRUE(whole->master_weights.is_none());
  if (GetRank(Group()) == 0) {
    ASSERT_TRUE(SavePth(whole->state, Temporary("state.pth")).ok());
  }
  const std::string path = BroadcastString(Temporary("state.pth"), Group());
  const auto loaded = LoadPth(path);
  ASSERT_TRUE(loaded.ok()) << loaded.status();
  ASSERT_TRUE(b->LoadWholeState(*loaded, nullptr).ok()) << b->LoadWholeState(*loaded, nullptr);
  ASSERT_TRUE(LoadOptimizerState(*loaded, c).ok()) << LoadOptimizerState(*loaded, c);
  ASSERT_TRUE(LoadModuleState(ModuleState(*first_net), *second_net).ok());
  ASSERT_TRUE(LoadModuleState(ModuleState(*first_net), *plain_net).ok());
  const at::Tensor x = at::randn({8, 1, 28, 28}), y = at::randint(10, {8});
  step(first, *a, x, y);
  step(second, *b, x, y);
  step(plain, c, x, y);
  for (const auto& item : first_net->named_parameters()) {
    EXPECT_TRUE(item.value().equal(second_net->named_parameters()[item.key()])) << item.key();
    EXPECT_TRUE(at::allclose(item.value(), plain_net->named_parameters()[item.key()], 1e-5, 1e-6)) << item.key();
  }
  // A state that doesn't fit.
  Value other((ValueDict()));
  other.set("state", ValueDict());
  other.set("param_groups", ValueList{});
  EXPECT_FALSE(b->LoadWholeState(other, nullptr).ok());
  Barrier(Group());
}

TEST(ShardedOptimizer, SavesAWholeStateThatPlainOnesRead) {
  for (bool groups : {false, true}) {
    ExpectWholeState<torch::optim::SGD>(torch::optim::SGDOptions(0.05).momentum(0.9), groups);
    ExpectWholeState<torch::optim::Adam>(torch::optim::AdamOptions(1e-3), groups);
    ExpectWholeState<torch::optim::AdamW>(torch::optim::AdamWOptions(1e-3), groups);
  }
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
