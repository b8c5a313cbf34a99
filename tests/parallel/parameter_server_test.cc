#include "lockstep/parallel/parameter_server.h"

#include <absl/strings/str_cat.h>
#include <ATen/Functions.h>
#include <gtest/gtest.h>
#include <torch/nn/functional/loss.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/adam.h>
#include <torch/optim/rmsprop.h>
#include <torch/optim/schedulers/step_lr.h>
#include <torch/optim/sgd.h>
#include <torch/utils.h>
#include <unistd.h>

#include <cstdlib>
#include <functional>
#include <limits>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/amp/grad_scaler.h"
#include "lockstep/checkpoint/checkpoint_writer.h"
#include "lockstep/checkpoint/pth.h"
#include "lockstep/checkpoint/state_dict.h"
#include "lockstep/comm/texts.h"
#include "lockstep/ddp/distributed_data_parallel.h"
#include "lockstep/parallel/parameter_server_optimizer.h"
#include "parameter_server_net.h"

namespace lockstep {
namespace {

using Layout = ParameterServerLayout;
using Values = std::map<std::string, at::Tensor>;

const ProcessGroupPtr& World() {
  static const ProcessGroupPtr group = InitProcessGroup().value();
  return group;
}
int Rank() { return GetRank(World()); }
int WorldSize() { return GetWorldSize(World()); }

Layout Asynchronous(std::optional<int64_t> max_staleness = std::nullopt) {
  Layout layout;
  layout.mode = Layout::Mode::kAsynchronous;
  layout.max_staleness = max_staleness;
  return layout;
}

Layout Servers(int servers, Layout::Placement placement = Layout::Placement::kSharded) {
  Layout layout;
  layout.servers = servers;
  layout.placement = placement;
  return layout;
}

OptimizerFactory Sgd(double lr = 0.05) {
  return MakesOptimizer<torch::optim::SGD>(torch::optim::SGDOptions(lr).momentum(0.9).weight_decay(1e-3));
}
OptimizerFactory Adam() {
  return MakesOptimizer<torch::optim::Adam>(torch::optim::AdamOptions(1e-2).weight_decay(1e-3));
}

Values Copies(const torch::nn::Module& module) {
  Values values;
  for (const auto& item : module.named_parameters()) values[item.key()] = item.value().detach().clone();
  for (const auto& item : module.named_buffers()) values[item.key()] = item.value().clone();
  return values;
}

/// The batch of a worker in a step, the same in every run.
std::pair<at::Tensor, at::Tensor> Batch(int worker, int64_t step) {
  torch::manual_seed(1000 * worker + step);
  const at::Tensor x = at::randn({8, 6});
  return {x, at::randint(3, {8})};
}

/// A training step of any optimizer.
template <typename Forward>
void Train(const Forward& forward, torch::optim::Optimizer& optimizer, int worker, int64_t step) {
  const auto [x, y] = Batch(worker, step);
  optimizer.zero_grad();
  torch::nn::functional::cross_entropy(forward(x), y).backward();
  optimizer.step();
}

/// `run` throws, and the text has `part` in it.
void ExpectError(const std::function<void()>& run, const std::string& part) {
  std::string message = "no error";
  try {
    run();
  } catch (const std::exception& e) {
    message = e.what();
  }
  EXPECT_NE(message.find(part), std::string::npos) << message;
}

using WorkerBody = std::function<void(ParameterServerOptimizer&, NetImpl&, int worker)>;

/// Servers serve, workers run `body` and finish. The values at the end: on workers, and on server 0.
Values RunAll(const Layout& layout, const OptimizerFactory& make_optimizer, const WorkerBody& body,
              const std::function<void(ParameterServer&)>& check_server = nullptr,
              const ParameterServerOptions& options = {}, const Value* checkpoint = nullptr) {
  Net net = MakeNet();
  if (layout.is_server(Rank())) {
    auto server = ParameterServer::Connect(World(), layout, *net, make_optimizer, options).value();
    if (checkpoint != nullptr) {
      EXPECT_TRUE(server->Restore(*checkpoint).ok());
    }
    const absl::Status served = server->Serve();
    EXPECT_TRUE(served.ok()) << served;
    if (check_server) check_server(*server);
  } else {
    // What a worker begins with doesn't count.
    for (auto& parameter : net->parameters()) parameter.data().zero_();
    auto optimizer = ParameterServerOptimizer::Connect(World(), layout, *net, make_optimizer).value();
    body(*optimizer, *net, layout.worker_index(Rank()));
    optimizer->Finish();
  }
  Barrier(World());
  return Copies(*net);
}

WorkerBody Steps(int64_t steps, int64_t first = 0) {
  return [=](ParameterServerOptimizer& optimizer, NetImpl& net, int worker) {
    for (int64_t i = first; i < first + steps; ++i) {
      Train([&](const at::Tensor& x) { return net.forward(x); }, optimizer, worker, i);
    }
  };
}

void ExpectClose(const Values& a, const Values& b) {
  ASSERT_EQ(a.size(), b.size());
  for (const auto& [name, tensor] : a) {
    EXPECT_TRUE(at::allclose(tensor.to(at::kDouble), b.at(name).to(at::kDouble), 1e-6, 1e-6)) << name;
  }
}

/// That this rank's values are rank `root`'s, bit for bit.
void ExpectThoseOf(int root, const Values& mine) {
  for (const auto& [name, tensor] : mine) {
    at::Tensor other = tensor.clone();
    Broadcast(other, World(), root);
    EXPECT_TRUE(other.equal(tensor)) << name << " on rank " << Rank();
  }
}

/// The same training under DistributedDataParallel, over the workers; the values of its rank 0 on all ranks.
Values PlainDataParallelism(const Layout& layout, const OptimizerFactory& make_optimizer, int64_t steps) {
  Net net = MakeNet();
  if (!layout.is_server(Rank())) {
    const auto workers = NewWorkerGroup(World(), layout).value();
    DistributedDataParallel<NetImpl> ddp(net, workers);
    std::vector<NamedParameter> named;
    for (const auto& item : net->named_parameters()) named.push_back({item.key(), item.value()});
    const auto optimizer = make_optimizer(named);
    for (int64_t i = 0; i < steps; ++i) {
      Train([&](const at::Tensor& x) { return ddp.forward(x); }, *optimizer, GetRank(workers), i);
    }
    ddp.SyncBuffers();
  }
  for (auto& tensor : net->parameters()) Broadcast(tensor.data(), World(), layout.servers);
  for (auto& tensor : net->buffers()) Broadcast(tensor, World(), layout.servers);
  return Copies(*net);
}

TEST(ParameterServer, SynchronousIsDistributedDataParallelWithItsBuffers) {
  for (const auto& make_optimizer : {Sgd(), Adam()}) {
    const Layout layout = Servers(1);
    const Values ours = RunAll(layout, make_optimizer, Steps(8));
    ExpectClose(ours, PlainDataParallelism(layout, make_optimizer, 8));
    ExpectThoseOf(0, ours);
  }
}

TEST(ParameterServer, ShardedAndReplicatedServersAreOneServer) {
  if (WorldSize() < 4) GTEST_SKIP() << "needs two servers and two workers";
  for (const auto& make_optimizer : {Sgd(), Adam()}) {
    const Values sharded = RunAll(Servers(2), make_optimizer, Steps(6));
    const Values replicated = RunAll(Servers(2, Layout::Placement::kReplicated), make_optimizer, Steps(6));
    const Values plain = PlainDataParallelism(Servers(2), make_optimizer, 6);
    if (Rank() == 1) {  // of the sharded servers only the first has everything at the end
      ExpectClose(replicated, plain);
      continue;
    }
    for (const auto& [name, tensor] : sharded) EXPECT_TRUE(tensor.equal(replicated.at(name))) << name;
    ExpectClose(sharded, plain);
  }
}

TEST(ParameterServer, MoreServersThanTensorsAndOneWorker) {
  const Layout layout = Servers(WorldSize() - 1);
  const auto factory = MakesOptimizer<torch::optim::SGD>(torch::optim::SGDOptions(0.5));
  torch::nn::Linear model(torch::nn::LinearOptions(1, 1).bias(false));
  model->weight.data().fill_(1);
  if (layout.is_server(Rank())) {
    auto server = ParameterServer::Connect(World(), layout, *model, factory).value();
    const absl::Status served = server->Serve();
    EXPECT_TRUE(served.ok()) << served;
    EXPECT_EQ(server->steps(), 2);
  } else {
    auto optimizer = ParameterServerOptimizer::Connect(World(), layout, *model, factory).value();
    for (int i = 0; i < 2; ++i) {
      optimizer->zero_grad();
      model->forward(at::ones({1, 1})).sum().backward();
      optimizer->step();
    }
    optimizer->Finish();
  }
  if (Rank() == 0 || Rank() == WorldSize() - 1) {
    EXPECT_EQ(model->weight.item<float>(), 0);
  }
  Barrier(World());
}

TEST(ParameterServer, AsynchronousStepsAreTakenOneByOne) {
  const Layout layout = Asynchronous();
  const int64_t workers = layout.num_workers(WorldSize());
  RunAll(layout, Sgd(), Steps(5), [&](ParameterServer& server) {
    EXPECT_EQ(server.steps(), 5 * workers);
    EXPECT_EQ(server.staleness().gradients(), 5 * workers);
    if (workers == 1) {
      EXPECT_EQ(server.staleness().max(), 0);
    }
  });
}

TEST(ParameterServer, OneAsynchronousWorkerIsAPlainOptimizer) {
  if (WorldSize() > 2) GTEST_SKIP() << "needs one worker";
  const Values ours = RunAll(Asynchronous(0), Adam(), Steps(6));
  ExpectClose(ours, PlainDataParallelism(Servers(1), Adam(), 6));
}

void Set(const std::string& key) { World()->getStore()->set(key, std::vector<uint8_t>{1}); }
void Await(const std::string& key) { World()->getStore()->wait({key}); }

TEST(ParameterServer, StalenessIsCounted) {
  if (WorldSize() != 3) GTEST_SKIP() << "needs two workers";
  ParameterServerStaleness counted;
  RunAll(
      Asynchronous(), Sgd(),
      [](ParameterServerOptimizer& optimizer, NetImpl& net, int worker) {
        // Both have their first parameters before a step is taken.
        if (worker == 1) Set("counted/connected");
        Await(worker == 0 ? "counted/connected" : "counted/first_is_done");
        Steps(worker == 0 ? 7 : 2)(optimizer, net, worker);
        EXPECT_EQ(optimizer.last_staleness(), 0);
        if (worker == 0) Set("counted/first_is_done");
        if (worker == 0) Await("counted/second_is_done");
        if (worker == 1) Set("counted/second_is_done");
      },
      [&](ParameterServer& server) { counted = server.staleness(); });
  if (Rank() != 0) return;
  // The second worker's first gradient is from parameters of seven steps before; all others are fresh.
  EXPECT_EQ(counted.histogram(), (std::vector<int64_t>{8, 0, 0, 0, 0, 0, 0, 1}));
  EXPECT_EQ(counted.max(), 7);
  EXPECT_DOUBLE_EQ(counted.mean(), 7.0 / 9);
  EXPECT_EQ(counted.max_lead(), 7);
}

TEST(ParameterServer, StalenessBoundHoldsWorkersBack) {
  if (WorldSize() != 3) GTEST_SKIP() << "needs two workers";
  constexpr int64_t kBound = 2, kSteps = 9;
  ParameterServerStaleness counted;
  const auto& store = World()->getStore();
  RunAll(
      Asynchronous(kBound), Sgd(),
      [&](ParameterServerOptimizer& optimizer, NetImpl& net, int worker) {
        if (worker == 1) Await("bound/2");  // as far as the first may go alone
        for (int64_t i = 0; i < kSteps; ++i) {
          if (worker == 1) store->add("bound/slow", 1);  // before its gradient is sent
          Steps(1, i)(optimizer, net, worker);
          if (worker == 1) continue;
          EXPECT_LE(i + 1 - store->add("bound/slow", 0), kBound);
          Set("bound/" + std::to_string(i + 1));
        }
      },
      [&](ParameterServer& server) { counted = server.staleness(); });
  if (Rank() != 0) return;
  EXPECT_EQ(counted.gradients(), 2 * kSteps);
  EXPECT_EQ(counted.max_lead(), kBound);
  EXPECT_LE(counted.max(), kBound + 1 + kBound);  // what one other worker can do between a read and a gradient
}

TEST(ParameterServer, LearningRatesReachTheServers) {
  const auto schedule = [](torch::optim::Optimizer& optimizer, const std::function<void()>& step) {
    torch::optim::StepLR steps(optimizer, 2, 0.1);
    for (int i = 0; i < 6; ++i) {
      step();
      steps.step();
    }
  };
  const Values ours = RunAll(Servers(1), Sgd(), [&](ParameterServerOptimizer& optimizer, NetImpl& net, int worker) {
    int64_t i = 0;
    schedule(optimizer, [&] { Steps(1, i++)(optimizer, net, worker); });
    EXPECT_NEAR(optimizer.param_groups()[0].options().get_lr(), 0.05 * 1e-2, 1e-9);
  });
  Net net = MakeNet();
  if (Rank() > 0) {
    DistributedDataParallel<NetImpl> ddp(net, NewWorkerGroup(World(), Servers(1)).value());
    torch::optim::SGD optimizer(net->parameters(), torch::optim::SGDOptions(0.05).momentum(0.9).weight_decay(1e-3));
    int64_t i = 0;
    schedule(optimizer,
             [&] { Train([&](const at::Tensor& x) { return ddp.forward(x); }, optimizer, Rank() - 1, i++); });
    ddp.SyncBuffers();
    ExpectClose(ours, Copies(*net));
  }
  Barrier(World());
}

TEST(ParameterServer, GroupsHaveRatesOfTheirOwnHoweverTheyAreSharded) {
  const Layout layout = Servers(std::max(1, WorldSize() - 2));
  const OptimizerFactory factory = [](const std::vector<NamedParameter>& parameters) {
    std::vector<at::Tensor> weights, others;
    for (const auto& named : parameters) (named.parameter.dim() > 1 ? weights : others).push_back(named.parameter);
    std::vector<torch::optim::OptimizerParamGroup> groups;
    // Of a shard that has none, there is no group.
    if (!weights.empty()) groups.emplace_back(weights, std::make_unique<torch::optim::SGDOptions>(0.1));
    if (!others.empty()) groups.emplace_back(others, std::make_unique<torch::optim::SGDOptions>(0.0));
    return std::make_unique<torch::optim::SGD>(groups, torch::optim::SGDOptions(1));
  };
  Values before = Copies(*MakeNet());
  const Values after = RunAll(layout, factory, Steps(2));
  if (Rank() > 0 && layout.is_server(Rank())) return;
  for (const auto& item : MakeNet()->named_parameters()) {
    EXPECT_EQ(after.at(item.key()).equal(before.at(item.key())), item.value().dim() == 1) << item.key();
  }
}

TEST(ParameterServer, ChangedOptionsThatDoNotTravelAreAnError) {
  RunAll(Servers(1), Sgd(), [](ParameterServerOptimizer& optimizer, NetImpl& net, int worker) {
    auto& options = static_cast<torch::optim::SGDOptions&>(optimizer.param_groups()[0].options());
    options.momentum(0.5);
    ExpectError([&] { Steps(1)(optimizer, net, worker); }, "an option of parameter group 0 has been changed");
    options.momentum(0.9);
  });
}

TEST(ParameterServer, PushAndPullAreTheHalvesOfAStep) {
  const Values whole = RunAll(Servers(1), Sgd(), Steps(3));
  const Values halves = RunAll(Servers(1), Sgd(), [](ParameterServerOptimizer& optimizer, NetImpl& net, int worker) {
    for (int64_t i = 0; i < 3; ++i) {
      const auto [x, y] = Batch(worker, i);
      optimizer.zero_grad();
      torch::nn::functional::cross_entropy(net.forward(x), y).backward();
      const Values before = Copies(net);
      optimizer.Push();
      EXPECT_TRUE(net.a->weight.equal(before.at("a.weight")));
      optimizer.Pull();
      EXPECT_FALSE(net.a->weight.equal(before.at("a.weight")));
    }
  });
  for (const auto& [name, tensor] : whole) EXPECT_TRUE(tensor.equal(halves.at(name))) << name;
}

TEST(ParameterServer, SkippedStepsAreSkippedByAllWorkers) {
  const Layout layout = Servers(1);
  const int last = layout.num_workers(WorldSize()) - 1;
  const auto run = [&](bool overflow) {
    return RunAll(layout, Sgd(), [&](ParameterServerOptimizer& optimizer, NetImpl& net, int worker) {
      GradScalerOptions options;
      options.init_scale = 4;
      options.group = NewWorkerGroup(World(), layout).value();
      GradScaler scaler(options);
      for (int64_t i = 0; i < 5; ++i) {
        if (i == 2 && !overflow) continue;
        const auto [x, y] = Batch(worker, i);
        optimizer.zero_grad();
        const at::Tensor loss = torch::nn::functional::cross_entropy(net.forward(x), y);
        scaler.Scale(i == 2 && worker == last ? loss * std::numeric_limits<float>::infinity() : loss).backward();
        EXPECT_EQ(scaler.Step(optimizer), i != 2);
        scaler.Update();
      }
    });
  };
  const Values skipped = run(true), without = run(false);
  for (const auto& item : MakeNet()->named_parameters()) {
    EXPECT_TRUE(skipped.at(item.key()).equal(without.at(item.key()))) << item.key();
  }
}

TEST(ParameterServer, AGradientThatNoWorkerHasLeavesItsParameterAlone) {
  const Values values = RunAll(Servers(1), Sgd(), [](ParameterServerOptimizer& optimizer, NetImpl& net, int worker) {
    net.a->weight.requires_grad_(false);
    Steps(3)(optimizer, net, worker);
  });
  // Not even weight decay.
  EXPECT_TRUE(values.at("a.weight").equal(MakeNet()->a->weight));
  EXPECT_FALSE(values.at("b.weight").equal(MakeNet()->b->weight));
}

TEST(ParameterServer, FrozenParametersAreGivenOnce) {
  const Layout layout = Servers(1);
  Net net = MakeNet();
  net->a->weight.requires_grad_(false);
  const at::Tensor frozen = net->a->weight.clone();
  if (layout.is_server(Rank())) {
    auto server = ParameterServer::Connect(World(), layout, *net, Sgd()).value();
    EXPECT_TRUE(server->Serve().ok());
  } else {
    for (auto& parameter : net->parameters()) parameter.data().fill_(7);
    auto optimizer = ParameterServerOptimizer::Connect(World(), layout, *net, Sgd()).value();
    Steps(2)(*optimizer, *net, layout.worker_index(Rank()));
    optimizer->Finish();
  }
  EXPECT_TRUE(net->a->weight.equal(frozen));
  Barrier(World());
}

TEST(ParameterServer, WhatWasFrozenAtTheStartCannotBeUnfrozen) {
  const Layout layout = Servers(1);
  Net net = MakeNet();
  net->a->weight.requires_grad_(false);
  if (layout.is_server(Rank())) {
    auto server = ParameterServer::Connect(World(), layout, *net, Sgd()).value();
    EXPECT_TRUE(server->Serve().ok());
  } else {
    auto optimizer = ParameterServerOptimizer::Connect(World(), layout, *net, Sgd()).value();
    Steps(1)(*optimizer, *net, 0);
    net->a->weight.requires_grad_(true);
    ExpectError([&] { Steps(1)(*optimizer, *net, 0); }, "parameter 'a.weight' needs a gradient now and did not when");
    net->a->weight.requires_grad_(false);
    Steps(1)(*optimizer, *net, 0);
    optimizer->Finish();
  }
  Barrier(World());
}

TEST(ParameterServer, FrozenAfterConnectAndUnfrozenLater) {
  const auto body = [](auto& optimizer, auto& net, int) {
    for (int step = 0; step < 4; ++step) {
      net.a->weight.requires_grad_(step >= 2);
      Train([&](const at::Tensor& x) { return net.forward(x); }, optimizer, 0, step);
    }
  };
  const Values values = RunAll(Servers(1), Sgd(), body);
  Net alone = MakeNet();
  torch::optim::SGD plain(alone->parameters(), torch::optim::SGDOptions(0.05).momentum(0.9).weight_decay(1e-3));
  body(plain, *alone, 0);
  ExpectClose(values, Copies(*alone));
}

/// Parameters without dimensions and without elements, complex, in half precision, and with another order in memory.
struct OddImpl : torch::nn::Module {
  OddImpl() {
    torch::manual_seed(2);
    scale = register_parameter("scale", at::rand({}));
    none = register_parameter("none", at::zeros({0, 3}));
    phase = register_parameter("phase", at::randn({5}, at::kComplexDouble));
    half = register_parameter("half", at::randn({3}).to(at::kBFloat16));
    image = register_parameter("image", at::randn({2, 3, 4, 5}).contiguous(at::MemoryFormat::ChannelsLast));
    transposed = register_parameter("transposed", at::randn({4, 3}).t());
  }
  at::Tensor Loss() const {
    return scale.square() + none.sum() + at::real(phase * phase.conj()).sum() + half.to(at::kFloat).square().sum() +
           image.pow(3).sum() + transposed.exp().sum();
  }
  at::Tensor scale, none, phase, half, image, transposed;
};

TEST(ParameterServer, ParametersOfAnyShapeDtypeAndOrderInMemory) {
  for (const int servers : {1, WorldSize() - 1}) {
    const Layout layout = Servers(servers);
    OddImpl net, alone;
    const auto steps = [](OddImpl& module, torch::optim::Optimizer& optimizer) {
      for (int step = 0; step < 3; ++step) {
        optimizer.zero_grad();
        module.Loss().backward();
        optimizer.step();
      }
    };
    if (layout.is_server(Rank())) {
      auto server = ParameterServer::Connect(World(), layout, net, Sgd(0.01)).value();
      const absl::Status served = server->Serve();
      EXPECT_TRUE(served.ok()) << served;
    } else {
      auto optimizer = ParameterServerOptimizer::Connect(World(), layout, net, Sgd(0.01)).value();
      steps(net, *optimizer);
      optimizer->Finish();
    }
    torch::optim::SGD plain(alone.parameters(), torch::optim::SGDOptions(0.01).momentum(0.9).weight_decay(1e-3));
    steps(alone, plain);
    if (!layout.is_server(Rank()) || Rank() == 0) {
      const auto expected = alone.named_parameters();
      for (const auto& item : net.named_parameters()) {
        const at::Tensor &mine = item.value(), &theirs = expected[item.key()];
        EXPECT_EQ(mine.strides(), theirs.strides()) << item.key();
        EXPECT_TRUE(at::allclose(mine, theirs, 1e-2, 1e-3)) << item.key();
      }
    }
    Barrier(World());
  }
}

std::string SharedFolder(const std::string& name) {
  const char* const folder = std::getenv("TEST_TMPDIR");
  return BroadcastString(std::string(folder == nullptr ? "/tmp" : folder) + "/saved" + std::to_string(getpid()) + name,
                         World());
}

TEST(ParameterServer, AnyNumberOfServersGoesOnFromACheckpoint) {
  if (WorldSize() < 4) GTEST_SKIP() << "needs several servers";
  int part = 0;
  for (const auto& make_optimizer : {Sgd(), Adam()}) {
    // Two workers in both runs; three steps, saved, and three more, against six.
    const Values whole = RunAll(Servers(2), make_optimizer, Steps(6));
    const std::string folder = SharedFolder(std::to_string(++part));
    PthWriter writer;
    std::unique_ptr<Checkpointer> checkpointer;
    CheckpointerOptions saving;
    saving.folder = folder;
    ParameterServerOptions options;
    options.save_every = 2;
    if (Rank() == 0) checkpointer = std::make_unique<Checkpointer>(saving, writer, nullptr);
    options.checkpointer = checkpointer.get();
    RunAll(Servers(2), make_optimizer, Steps(3), nullptr, options);
    const Value checkpoint = LoadPth(Checkpointer::Latest(folder).value()).value();
    EXPECT_EQ(checkpoint.find("steps")->count().value(), 3);
    EXPECT_TRUE(CheckModuleState(*checkpoint.find("model"), *MakeNet()).ok());
    EXPECT_TRUE(LoadPth(folder + "/step-2.pth").ok());
    const auto check_steps = [](ParameterServer& server) { EXPECT_EQ(server.steps(), 6); };
    const Values same = RunAll(Servers(2), make_optimizer, Steps(3, 3), check_steps, {}, &checkpoint);
    const Values other =
        RunAll(Servers(2, Layout::Placement::kReplicated), make_optimizer, Steps(3, 3), check_steps, {}, &checkpoint);
    if (Rank() != 1) {
      for (const auto& [name, tensor] : whole) EXPECT_TRUE(tensor.equal(same.at(name))) << name;
      for (const auto& [name, tensor] : whole) EXPECT_TRUE(tensor.equal(other.at(name))) << name;
    }
    // Three servers; the one worker makes the steps of a world of its own.
    const Values three = RunAll(Servers(3), make_optimizer, Steps(2, 3), nullptr, {}, &checkpoint);
    if (Rank() == 3) {
      Net net = MakeNet();
      ASSERT_TRUE(LoadModuleState(*checkpoint.find("model"), *net).ok());
      std::vector<NamedParameter> named;
      for (const auto& item : net->named_parameters()) named.push_back({item.key(), item.value()});
      const auto optimizer = make_optimizer(named);
      ASSERT_TRUE(LoadOptimizerState(*checkpoint.find("optimizer"), *optimizer).ok());
      for (int64_t i = 3; i < 5; ++i) {
        Train([&](const at::Tensor& x) { return net->forward(x); }, *optimizer, 0, i);
      }
      ExpectClose(three, Copies(*net));
    }
    Barrier(World());
  }
}

TEST(ParameterServer, WorkersSaveAndLoadTheWholeState) {
  const Layout layout = Servers(std::max(1, WorldSize() - 2));
  const Values whole = RunAll(layout, Adam(), Steps(5));
  Value saved((ValueDict()));
  std::string packed;
  RunAll(layout, Adam(), [&](ParameterServerOptimizer& optimizer, NetImpl& net, int worker) {
    Steps(3)(optimizer, net, worker);
    auto state = optimizer.WholeState();
    ASSERT_TRUE(state.ok()) << state.status();
    EXPECT_EQ(state->state.is_none(), worker != 0);
    if (worker != 0) return;
    saved.set("model", ModuleState(net));
    saved.set("optimizer", state->state);
    const char* const folder = std::getenv("TEST_TMPDIR");
    packed = std::string(folder == nullptr ? "/tmp" : folder) + "/worker" + std::to_string(getpid());
    ASSERT_TRUE(SavePth(saved, packed).ok());
  });
  packed = BroadcastString(packed, World(), layout.servers);
  const Value checkpoint = LoadPth(packed).value();
  const Values resumed = RunAll(layout, Adam(), [&](ParameterServerOptimizer& optimizer, NetImpl& net, int worker) {
    ASSERT_TRUE(LoadModuleState(*checkpoint.find("model"), net).ok());
    const absl::Status loaded = optimizer.LoadWholeState(*checkpoint.find("optimizer"), nullptr);
    ASSERT_TRUE(loaded.ok()) << loaded;
    Steps(2, 3)(optimizer, net, worker);
    if (worker == 0) {
      EXPECT_FALSE(optimizer.LoadWholeState(*checkpoint.find("optimizer"), nullptr).ok());
    }
  });
  if (Rank() > 0 && layout.is_server(Rank())) return;
  for (const auto& [name, tensor] : whole) EXPECT_TRUE(tensor.equal(resumed.at(name))) << name;
}

TEST(ParameterServer, OptimizersThatCanNotBeSavedStillServe) {
  const auto factory = MakesOptimizer<torch::optim::RMSprop>(torch::optim::RMSpropOptions(1e-3));
  const Layout layout = Servers(std::max(1, WorldSize() - 2));
  const Values ours = RunAll(layout, factory, [](ParameterServerOptimizer& optimizer, NetImpl& net, int worker) {
    Steps(3)(optimizer, net, worker);
    if (worker > 0) return;
    EXPECT_NE(std::string(optimizer.WholeState().status().message()).find("only SGD, Adam and AdamW can be saved"),
              std::string::npos);
  });
  const Values plain = PlainDataParallelism(layout, factory, 3);
  if (Rank() == 0 || !layout.is_server(Rank())) ExpectClose(ours, plain);
}

/// The errors of Connect, on all ranks, have all of `parts` in them.
void ExpectConnectError(const Layout& layout, torch::nn::Module& module, const OptimizerFactory& factory,
                        const std::vector<std::string>& parts) {
  std::string message;
  if (layout.is_server(Rank())) {
    message = std::string(ParameterServer::Connect(World(), layout, module, factory).status().message());
  } else {
    message = std::string(ParameterServerOptimizer::Connect(World(), layout, module, factory).status().message());
  }
  for (const auto& part : parts) EXPECT_NE(message.find(part), std::string::npos) << message;
  Barrier(World());
}

struct NamedImpl : torch::nn::Module {
  NamedImpl(const std::string& name, int64_t size) {
    first = register_module("first", torch::nn::Linear(2, 2));
    second = register_module(name, torch::nn::Linear(2, size));
  }
  torch::nn::Linear first{nullptr}, second{nullptr};
};

TEST(ParameterServer, DifferencesBetweenServersAndWorkersAreNamed) {
  const bool last = Rank() == WorldSize() - 1;
  const std::string worker = absl::StrCat("worker ", WorldSize() - 2, " (rank ", WorldSize() - 1, ")");
  NamedImpl same("second", 3), shape("second", last ? 4 : 3), name(last ? "other" : "second", 3);
  ExpectConnectError(Servers(1), shape, Sgd(),
                     {"parameter 'second.weight' differs: Float [3, 2], parameter group 0 on server 0 (rank 0), "
                      "Float [4, 2], parameter group 0 on " +
                      worker});
  ExpectConnectError(Servers(1), name, Sgd(), {"parameter 'second.weight' is on server 0 (rank 0), not on " + worker});
  ExpectConnectError(
      Servers(1), same, last ? Adam() : Sgd(),
      {"the optimizer differs: torch::optim::SGD on server 0 (rank 0), torch::optim::Adam on " + worker});
  ExpectConnectError(
      last ? Asynchronous() : Servers(1), same, Sgd(),
      {"the layout differs: 1 server, synchronous, sharded on server 0 (rank 0), 1 server, asynchronous, "
       "sharded on " +
       worker});
}

TEST(ParameterServer, WrongLayoutsAndFactoriesAreRefused) {
  NamedImpl module("second", 3);
  ExpectConnectError(Servers(0), module, Sgd(), {"servers must be at least 1, not 0"});
  ExpectConnectError(Servers(WorldSize()), module, Sgd(), {"so that no worker is left; start at least "});
  ExpectConnectError(Asynchronous(-1), module, Sgd(), {"max_staleness must be at least 0, not -1"});
  Layout bounded = Servers(1);
  bounded.max_staleness = 3;
  ExpectConnectError(bounded, module, Sgd(), {"max_staleness is for asynchronous mode"});
  const OptimizerFactory part = [](const std::vector<NamedParameter>& parameters) {
    return std::make_unique<torch::optim::SGD>(std::vector<at::Tensor>{parameters[0].parameter},
                                               torch::optim::SGDOptions(0.1));
  };
  ExpectConnectError(Servers(1), module, part, {"has 1 parameters of the 4 that it was given"});
  const OptimizerFactory copies = [](const std::vector<NamedParameter>& parameters) {
    return std::make_unique<torch::optim::SGD>(std::vector<at::Tensor>{parameters[0].parameter.detach().clone()},
                                               torch::optim::SGDOptions(0.1));
  };
  ExpectConnectError(Servers(1), module, copies, {"a parameter that it was not given"});
  if (WorldSize() < 3) return;
  Layout replicated = Asynchronous();
  replicated.servers = 2;
  replicated.placement = Layout::Placement::kReplicated;
  ExpectConnectError(replicated, module, Sgd(), {"replicated servers would drift apart in asynchronous mode"});
}

/// A worker's error, and the server's, when workers don't do the same.
void ExpectFailure(const WorkerBody& body, const std::string& part) {
  Net net = MakeNet();
  const Layout layout = Servers(1);
  std::string message;
  if (layout.is_server(Rank())) {
    auto server = ParameterServer::Connect(World(), layout, *net, Sgd()).value();
    message = std::string(server->Serve().message());
  } else {
    auto optimizer = ParameterServerOptimizer::Connect(World(), layout, *net, Sgd()).value();
    try {
      body(*optimizer, *net, layout.worker_index(Rank()));
      optimizer->Finish();
    } catch (const std::exception& e) {
      message = e.what();
    }
  }
  EXPECT_NE(message.find(part), std::string::npos) << message;
  Barrier(World());
}

TEST(ParameterServer, SynchronousWorkersMustAgree) {
  if (WorldSize() != 3) GTEST_SKIP() << "needs two workers";
  ExpectFailure(
      [](ParameterServerOptimizer& optimizer, NetImpl& net, int worker) {
        if (worker == 1) optimizer.param_groups()[0].options().set_lr(1);
        Steps(1)(optimizer, net, worker);
      },
      "parameter server: worker 0 (rank 1) and worker 1 (rank 2) have different learning rates");
  Net net = MakeNet();
  // Who has finished is content, so that only the other's error says it.
  if (Rank() == 0) {
    auto server = ParameterServer::Connect(World(), Servers(1), *net, Sgd()).value();
    EXPECT_NE(std::string(server->Serve().message())
                  .find("worker 1 (rank 2) has finished after 2 steps, worker 0 "
                        "(rank 1) makes its step 3"),
              std::string::npos);
  } else {
    auto optimizer = ParameterServerOptimizer::Connect(World(), Servers(1), *net, Sgd()).value();
    Steps(2)(*optimizer, *net, Rank() - 1);
    if (Rank() == 1) {
      Await("finished/second");
      ExpectError([&] { Steps(1)(*optimizer, *net, 0); }, "worker 1 (rank 2) has finished after 2 steps");
      ExpectError([&] { optimizer->Pull(); }, "worker 1 (rank 2) has finished after 2 steps");
    } else {
      optimizer->Finish();
      Set("finished/second");
      ExpectError([&] { optimizer->step(); }, "this worker has finished");
    }
  }
  Barrier(World());
}

TEST(ParameterServer, AWorkerThatGivesUpIsAnErrorOfAllSynchronousWorkers) {
  if (WorldSize() != 3) GTEST_SKIP() << "needs two workers";
  Net net = MakeNet();
  const std::string wanted = "parameter server: worker 1 (rank 2) gave up: it ended before Finish";
  if (Rank() == 0) {
    auto server = ParameterServer::Connect(World(), Servers(1), *net, Sgd()).value();
    EXPECT_EQ(server->Serve().message(), wanted);
  } else {
    auto optimizer = ParameterServerOptimizer::Connect(World(), Servers(1), *net, Sgd()).value();
    Steps(1)(*optimizer, *net, Rank() - 1);
    if (Rank() == 2) optimizer.reset();
    if (Rank() == 1) {
      ExpectError([&] { Steps(2)(*optimizer, *net, 0); }, wanted);
    }
  }
  Barrier(World());
}

TEST(ParameterServer, SparseGradientsAreRefusedByName) {
  RunAll(Servers(1), Sgd(), [](ParameterServerOptimizer& optimizer, NetImpl& net, int) {
    net.a->weight.mutable_grad() = at::ones_like(net.a->weight).to_sparse();
    ExpectError([&] { optimizer.step(); }, "the gradient of 'a.weight' is sparse");
  });
}

}  // namespace
}  // namespace lockstep
