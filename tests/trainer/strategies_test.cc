// The same training in every way: parameters, metrics and checkpoints are those of one process on whole batches.

#include <ATen/Functions.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/loss.h>
#include <torch/optim/sgd.h>
#include <torch/utils.h>

#include <cstdlib>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "lockstep/amp/no_scaler.h"
#include "lockstep/checkpoint/pth.h"
#include "lockstep/checkpoint/state_dict.h"
#include "lockstep/comm/process_group.h"
#include "lockstep/data/tensor_loader.h"
#include "lockstep/ddp/distributed_data_parallel.h"
#include "lockstep/ddp/sharded_optimizer.h"
#include "lockstep/ddp/sharded_reducer.h"
#include "lockstep/parallel/data_parallel.h"
#include "lockstep/parallel/parameter_server.h"
#include "lockstep/parallel/parameter_server_optimizer.h"
#include "lockstep/samplers/distributed_sampler.h"
#include "lockstep/trainer/data_parallel_strategy.h"
#include "lockstep/trainer/parameter_server_strategy.h"
#include "lockstep/trainer/pipeline_strategy.h"
#include "lockstep/trainer/trainer.h"
#include "never_stop.h"

namespace lockstep {
namespace {

constexpr int64_t kSamples = 48, kGlobalBatch = 12;
constexpr size_t kEpochs = 3;

const ProcessGroupPtr& Group() {
  static const ProcessGroupPtr group = InitProcessGroup().value();
  return group;
}
int Rank() { return GetRank(Group()); }
int World() { return GetWorldSize(Group()); }

torch::optim::SGDOptions Sgd() { return torch::optim::SGDOptions(0.05).momentum(0.9); }

/// Layers 0, 2, 4, … of a net, under those names: all of them, or those of a stage.
struct NetImpl : torch::nn::Module {
  explicit NetImpl(size_t first = 0, size_t last = 3) {
    torch::manual_seed(1);
    const std::vector<int64_t> widths{3, 5, 7, 4, 1};
    for (size_t i = 0; i <= last; ++i) {
      torch::nn::Linear layer(widths[i], widths[i + 1]);
      layer->to(at::kDouble);
      if (i >= first) layers.push_back(register_module("layer" + std::to_string(i), layer));
    }
    ends = last == 3;
  }
  at::Tensor forward(at::Tensor x) {
    for (size_t i = 0; i < layers.size(); ++i) {
      x = layers[i]->forward(x);
      if (!ends || i + 1 < layers.size()) x = x.tanh();
    }
    return x;
  }
  std::shared_ptr<torch::nn::Module> clone(const c10::optional<at::Device>& = c10::nullopt) const override {
    return std::make_shared<NetImpl>();
  }
  std::vector<torch::nn::Linear> layers;
  bool ends;
};
TORCH_MODULE(Net);

at::Tensor Inputs() { return at::sin(at::arange(kSamples * 3, at::kDouble).view({kSamples, 3}) * 1.7); }
at::Tensor Targets() { return Inputs().sum(1, true).square(); }
at::Tensor Loss(const at::Tensor& output, const at::Tensor& target) { return (output - target).square().mean(); }

std::string Folder() {
  const char* folder = std::getenv("TEST_TMPDIR");
  return folder == nullptr ? "/tmp" : folder;
}

struct Plan {
  size_t epochs;
  std::string path;      ///< Of the checkpoint that is left.
  bool resumes = false;  ///< From the one that is there.
  double clip = 0;       ///< Norm.
  size_t accumulate = 1;
};
using Metrics = std::map<std::string, double>;

struct Seen : TrainObserver {
  void OnValidated(const EpochInfo& info) override { metrics = info.metrics; }
  std::map<std::string, double> metrics;
};

/// Trains on this rank's share.
void Train(Strategy& strategy, torch::nn::Module& module, torch::optim::Optimizer& optimizer,
           TrainStep<TensorBatch> train_step, EvalStep<TensorBatch> eval_step, const Plan& plan, Metrics& metrics) {
  const DataShare share = strategy.share();
  const auto loader = [&](bool train) {
    DistributedSamplerOptions order;
    order.shuffle = false;
    order.pad = train;
    LoaderOptions options;
    options.batch_size = static_cast<size_t>(kGlobalBatch / share.count);
    return TensorLoader(Inputs(), Targets(), DistributedSampler(kSamples, share.count, share.index, order), options);
  };
  TensorLoader train = loader(true), validation = loader(false);
  NoScaler scaler;
  NeverStop never;
  Seen seen;
  Trainer<TensorBatch>::Pieces pieces;
  pieces.state = {&module, &optimizer, &scaler, &never};
  pieces.strategy = &strategy;
  pieces.train_step = std::move(train_step);
  pieces.eval_step = std::move(eval_step);
  pieces.train = &train;
  pieces.validation = &validation;
  pieces.observers = {&seen};
  TrainerOptions options;
  options.epochs = plan.epochs;
  options.gradients.max_grad_norm = plan.clip;
  options.gradients.accumulate = plan.accumulate;
  Trainer<TensorBatch> trainer(pieces, options);
  if (plan.resumes) {
    const auto checkpoint = LoadPth(plan.path);
    ASSERT_TRUE(checkpoint.ok()) << checkpoint.status();
    const absl::Status status = trainer.Resume(*checkpoint);
    ASSERT_TRUE(status.ok()) << status;
    ASSERT_EQ(trainer.epoch(), plan.epochs);
  }
  const absl::Status status = trainer.Fit();
  ASSERT_TRUE(status.ok()) << status;
  PthWriter writer;
  const absl::Status saved = SaveOnRankZero({&module, &optimizer, &scaler, &never, {}, strategy.split_state()},
                                            plan.epochs, plan.path, writer, strategy.group());
  ASSERT_TRUE(saved.ok()) << saved;
  metrics = seen.metrics;
}

/// A way to train, with a new model each time.
using Way = std::function<void(const Plan&, Metrics&)>;

/// `wrapper`: what is called; `net`: whose state it is.
template <typename Wrapper>
void TrainWrapped(Strategy& strategy, Net& net, Wrapper& wrapper, torch::optim::Optimizer& optimizer, const Plan& plan,
                  Metrics& metrics) {
  const auto step = [&](TensorBatch& batch) {
    return StepOutput{Loss(wrapper.forward(batch.data), batch.target), batch.data.size(0)};
  };
  Train(strategy, *net, optimizer, step, step, plan, metrics);
}

void Plain(const Plan& plan, Metrics& metrics) {
  Net net;
  torch::optim::SGD optimizer(net->parameters(), Sgd());
  SingleStrategy strategy(*net);
  TrainWrapped(strategy, net, *net, optimizer, plan, metrics);
}

std::map<std::string, at::Tensor> ModelIn(const std::string& path) {
  std::map<std::string, at::Tensor> model;
  const auto checkpoint = LoadPth(path);
  EXPECT_TRUE(checkpoint.ok()) << checkpoint.status();
  for (const auto& [key, tensor] : checkpoint->find("model")->dict()->items) model[*key.string()] = *tensor.tensor();
  return model;
}

void Meet() {
  if (Group()) Barrier(Group());
}

/// `way`, stopped after an epoch and taken up again by a new start, ends as one process does that doesn't stop; and it
/// takes up one process's checkpoint.
void ExpectAsPlain(const Way& way, const std::string& name, double clip = 0.8, size_t accumulate = 1) {
  const std::string ours = Folder() + "/" + name + ".pth";
  const std::string plain = Folder() + "/" + name + "_plain" + std::to_string(Rank()) + ".pth";
  Metrics mine, expected;
  Plain({kEpochs, plain, false, clip, accumulate}, expected);
  const auto end = ModelIn(plain);
  const auto check = [&] {
    Meet();
    const auto model = ModelIn(ours);
    ASSERT_EQ(model.size(), end.size());
    for (const auto& [key, tensor] : end) {
      ASSERT_EQ(model.count(key), 1u) << key;
      EXPECT_TRUE(at::allclose(model.at(key), tensor, 1e-9, 1e-12)) << key;
    }
    Meet();
  };
  way({kEpochs - 1, ours, false, clip, accumulate}, mine);
  Meet();
  way({kEpochs, ours, true, clip, accumulate}, mine);
  check();
  for (const auto& [metric, value] : mine) {
    if (metric != "train_loss" && metric != "val_loss") continue;
    EXPECT_NEAR(value, expected.at(metric), 1e-9) << metric;
  }
  if (Rank() == 0) Plain({kEpochs - 1, ours, false, clip, accumulate}, expected);
  Meet();
  way({kEpochs, ours, true, clip, accumulate}, mine);
  check();
}

TEST(Strategies, TheLogSaysOnceWhatAStepTakes) {
  Net net;
  DistributedDataParallel<NetImpl> ddp(net, Group());
  torch::optim::SGD optimizer(ddp.parameters(), Sgd());
  DdpStrategy strategy(ddp);
  Metrics metrics;
  testing::internal::CaptureStderr();
  TrainWrapped(strategy, net, ddp, optimizer, {2, Folder() + "/log.pth"}, metrics);
  const std::string log = testing::internal::GetCapturedStderr();
  const std::string expected =
      "strategy ddp: a step takes " + std::to_string(kGlobalBatch / World()) + " samples of a rank, 12 together";
  const size_t at = log.find(expected);
  EXPECT_EQ(at != std::string::npos, Rank() == 0) << log;
  if (Rank() == 0) {
    EXPECT_EQ(log.find("a step takes", at + expected.size()), std::string::npos) << log;
  }
}

TEST(Strategies, DataParallel) {
  if (World() > 1) GTEST_SKIP() << "one process";
  ExpectAsPlain(
      [](const Plan& plan, Metrics& metrics) {
        Net net;
        DataParallel<NetImpl> replicas(net, {at::kCPU, at::kCPU, at::kCPU});
        torch::optim::SGD optimizer(net->parameters(), Sgd());
        DataParallelStrategy strategy(replicas);
        EXPECT_EQ(strategy.devices(), 3u);
        TrainWrapped(strategy, net, replicas, optimizer, plan, metrics);
        EXPECT_EQ(metrics.count("train_loss"), 1u);
      },
      "data_parallel");
}

TEST(Strategies, DistributedDataParallel) {
  ExpectAsPlain(
      [](const Plan& plan, Metrics& metrics) {
        Net net;
        DistributedDataParallel<NetImpl> ddp(net, Group());
        torch::optim::SGD optimizer(ddp.parameters(), Sgd());
        DdpStrategy strategy(ddp);
        EXPECT_EQ(strategy.name(), "ddp");
        TrainWrapped(strategy, net, ddp, optimizer, plan, metrics);
        EXPECT_EQ(metrics.count("train_loss"), 1u);
      },
      "ddp");
}

TEST(Strategies, Zero1) {
  if (World() == 1) GTEST_SKIP() << "several ranks";
  ExpectAsPlain(
      [](const Plan& plan, Metrics& metrics) {
        Net net;
        ShardedReducer* reducer = nullptr;
        DistributedDataParallelOptions options;
        options.make_reducer = [&](std::vector<NamedParameter> parameters, const ProcessGroupPtr& group) {
          auto made = std::make_unique<ShardedReducer>(std::move(parameters), group);
          reducer = made.get();
          return made;
        };
        DistributedDataParallel<NetImpl> ddp(net, Group(), options);
        ShardedOptimizer<torch::optim::SGD> optimizer(*reducer, Sgd());
        DdpStrategy strategy(ddp);
        EXPECT_EQ(strategy.name(), "zero1");
        TrainWrapped(strategy, net, ddp, optimizer, plan, metrics);
        EXPECT_EQ(metrics.count("train_loss"), 1u);
      },
      "zero1");
}

/// Four layers in so many stages, and the other ranks as replicas.
Way PipelineWay(int num_stages) {
  return [num_stages](const Plan& plan, Metrics& metrics) {
    const auto grid = MakeRankGrid(Group(), num_stages);
    ASSERT_TRUE(grid.ok()) << grid.status();
    const auto stage = static_cast<size_t>(grid->stage), stages = static_cast<size_t>(num_stages);
    Net net(stage * 4 / stages, (stage + 1) * 4 / stages - 1);
    auto ddp = std::make_shared<DistributedDataParallel<NetImpl>>(net, grid->data);
    PipelineOptions options;
    options.loss = Loss;
    options.micro_batches = 3;
    Pipeline pipeline(ddp, grid->pipeline, options);
    torch::optim::SGD optimizer(net->parameters(), Sgd());
    PipelineState state(*net, optimizer, grid->pipeline);
    PipelineStrategy strategy(pipeline, *ddp, Group(), *grid, state);
    const auto train_step = [&](TensorBatch& batch) {
      StepOutput output{pipeline.Step(batch.data, batch.target), batch.data.size(0)};
      output.went_backward = true;
      return output;
    };
    const auto eval_step = [&](TensorBatch& batch) {
      const at::Tensor output = pipeline.Evaluate(batch.data);
      return StepOutput{output.defined() ? Loss(output, batch.target) : at::Tensor(), batch.data.size(0)};
    };
    Train(strategy, *net, optimizer, train_step, eval_step, plan, metrics);
    EXPECT_EQ(metrics.count("train_loss"), 1u);
  };
}

TEST(Strategies, StagesWithOneNameAreRefusedBeforeTheTraining) {
  if (World() == 1) return;
  Net net;
  torch::optim::SGD optimizer(net->parameters(), Sgd());
  try {
    PipelineState(*net, optimizer, Group());
    FAIL() << "all stages have a layer0";
  } catch (const c10::Error& e) {
    EXPECT_NE(std::string(e.what()).find("stages 0 and 1 both have a 'layer0.bias'"), std::string::npos) << e.what();
  }
}

TEST(Strategies, Pipeline) { ExpectAsPlain(PipelineWay(World()), "pipeline"); }

/// Three batches a step, and the last step of an epoch, of one batch.
TEST(Strategies, PipelineThatAccumulates) {
  ExpectAsPlain(PipelineWay(World() == 4 ? 2 : World()), "pipeline_accumulates", /*clip=*/0.8, /*accumulate=*/3);
}

TEST(Strategies, PipelinesSideBySide) {
  if (World() != 4) GTEST_SKIP() << "four ranks";
  ExpectAsPlain(PipelineWay(2), "pipelines");
}

TEST(Strategies, ParameterServer) {
  if (World() == 1) GTEST_SKIP() << "a server and a worker";
  ExpectAsPlain(
      [](const Plan& plan, Metrics& metrics) {
        ParameterServerLayout layout;
        const auto factory = MakesOptimizer<torch::optim::SGD>(Sgd());
        Net net;
        if (layout.is_server(Rank())) {
          const auto server = ParameterServer::Connect(Group(), layout, *net, factory);
          ASSERT_TRUE(server.ok()) << server.status();
          const absl::Status served = (*server)->Serve();
          ASSERT_TRUE(served.ok()) << served;
          return;
        }
        const auto workers = NewWorkerGroup(Group(), layout);
        ASSERT_TRUE(workers.ok()) << workers.status();
        const auto optimizer = ParameterServerOptimizer::Connect(Group(), layout, *net, factory);
        ASSERT_TRUE(optimizer.ok()) << optimizer.status();
        ParameterServerStrategy strategy(*net, layout, Group(), *workers);
        TrainWrapped(strategy, net, *net, **optimizer, plan, metrics);
        EXPECT_EQ(metrics.count("train_loss"), 1u);
        (*optimizer)->Finish();
      },
      "parameter_server", /*clip=*/0);  // each worker would clip its own
}

}  // namespace
}  // namespace lockstep
