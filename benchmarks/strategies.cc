// One way to train MNIST's ConvNet, through the trainer; rank 0 prints images/s of all together as JSON:
//   strategies_rank WAY WORKERS BATCH STEPS
// WAY: single, data_parallel, ddp, zero1, pipeline, parameter_server or async_parameter_server. BATCH is a worker's:
// data_parallel cuts BATCH × WORKERS for as many replicas, pipelines of two stages take as much on each replica of
// theirs. Servers come before the workers. The ranks are a launcher's.

#include <ATen/Functions.h>
#include <ATen/Parallel.h>
#include <torch/nn/functional/loss.h>
#include <torch/optim/sgd.h>
#include <torch/utils.h>

#include <cstdio>
#include <cstdlib>
#include <functional>
#include <map>
#include <memory>
#include <string>

#include "lockstep/amp/no_scaler.h"
#include "lockstep/base/malloc.h"
#include "lockstep/base/status_macros.h"
#include "lockstep/checkpoint/early_stopping.h"
#include "lockstep/data/tensor_loader.h"
#include "lockstep/ddp/distributed_data_parallel.h"
#include "lockstep/ddp/sharded_optimizer.h"
#include "lockstep/ddp/sharded_reducer.h"
#include "lockstep/launch/rank_main.h"
#include "lockstep/models/conv_net.h"
#include "lockstep/parallel/parameter_server.h"
#include "lockstep/parallel/parameter_server_optimizer.h"
#include "lockstep/samplers/distributed_sampler.h"
#include "lockstep/trainer/data_parallel_strategy.h"
#include "lockstep/trainer/parameter_server_strategy.h"
#include "lockstep/trainer/pipeline_strategy.h"
#include "lockstep/trainer/trainer.h"

#include "lockstep/base/logging.h"

namespace {

using lockstep::ProcessGroupPtr;
using lockstep::StepOutput;
using lockstep::TensorBatch;
using lockstep::models::ConvNet;
using lockstep::models::ConvNetImpl;

struct Job {
  std::string way;
  int workers = 1;
  int64_t batch = 0, steps = 0;
};

torch::optim::SGDOptions Sgd() { return torch::optim::SGDOptions(0.01); }
at::Tensor Loss(const at::Tensor& logits, const at::Tensor& target) {
  return torch::nn::functional::cross_entropy(logits, target);
}

/// Some of the net's blocks, under their names.
struct StageImpl : torch::nn::Module {
  explicit StageImpl(bool first) {
    ConvNet net;
    if (first) {
      blocks.push_back(register_module("layer1", net->layer1));
    } else {
      blocks.push_back(register_module("layer2", net->layer2));
      blocks.push_back(register_module("fc", net->fc));
    }
  }
  at::Tensor forward(at::Tensor x) {
    for (auto& block : blocks) x = block->forward(x);
    return x;
  }
  std::vector<torch::nn::Sequential> blocks;
};

struct Rate : lockstep::TrainObserver {
  void OnValidated(const lockstep::EpochInfo& info) override { value = info.metrics.at("images_per_second"); }
  double value = 0;
};

absl::Status Train(const Job& job, lockstep::Strategy& strategy, torch::nn::Module& module,
                   torch::optim::Optimizer& optimizer, lockstep::TrainStep<TensorBatch> train_step,
                   lockstep::EvalStep<TensorBatch> eval_step) {
  const lockstep::DataShare share = strategy.share();
  const int64_t together = job.batch * job.workers, samples = together * job.steps;
  const at::Tensor images = at::rand({samples, 1, 28, 28}), labels = at::randint(10, {samples}, at::kLong);
  const auto loader = [&](int64_t count) {
    lockstep::LoaderOptions options;
    options.batch_size = static_cast<size_t>(together / share.count);
    return lockstep::TensorLoader(images, labels, lockstep::DistributedSampler(count, share.count, share.index, {}),
                                  options);
  };
  auto train = loader(samples), validation = loader(together);
  lockstep::NoScaler scaler;
  lockstep::EarlyStoppingOptions stopping;
  stopping.monitor = "val_loss";
  lockstep::EarlyStopping stop(stopping);
  Rate rate;
  lockstep::Trainer<TensorBatch>::Pieces pieces;
  pieces.state = {&module, &optimizer, &scaler, &stop};
  pieces.strategy = &strategy;
  pieces.train_step = std::move(train_step);
  pieces.eval_step = std::move(eval_step);
  pieces.train = &train;
  pieces.validation = &validation;
  pieces.observers = {&rate};
  lockstep::TrainerOptions options;
  options.epochs = 2;  // the second is measured
  options.finite.every = 0;
  LOCKSTEP_RETURN_IF_ERROR(lockstep::Trainer<TensorBatch>(std::move(pieces), options).Fit());
  if (lockstep::GetRank(strategy.group()) == 0) std::printf("{\"images_per_second\": %g}\n", rate.value);
  return absl::OkStatus();
}

template <typename Wrapper>
absl::Status TrainWrapped(const Job& job, lockstep::Strategy& strategy, torch::nn::Module& module, Wrapper& wrapper,
                          torch::optim::Optimizer& optimizer) {
  const auto step = [&](TensorBatch& batch) {
    return StepOutput{Loss(wrapper.forward(batch.data), batch.target), batch.data.size(0)};
  };
  return Train(job, strategy, module, optimizer, step, step);
}

absl::Status Ddp(const Job& job, const ProcessGroupPtr& group) {
  ConvNet net;
  lockstep::ShardedReducer* reducer = nullptr;
  lockstep::DistributedDataParallelOptions options;
  options.broadcast_buffers = false;
  if (job.way == "zero1") {
    options.make_reducer = [&](std::vector<lockstep::NamedParameter> parameters, const ProcessGroupPtr& of) {
      auto made = std::make_unique<lockstep::ShardedReducer>(std::move(parameters), of);
      reducer = made.get();
      return made;
    };
  }
  lockstep::DistributedDataParallel<ConvNetImpl> ddp(net, group, options);
  lockstep::DdpStrategy strategy(ddp);
  std::unique_ptr<torch::optim::Optimizer> optimizer;
  if (reducer != nullptr) {
    optimizer = std::make_unique<lockstep::ShardedOptimizer<torch::optim::SGD>>(*reducer, Sgd());
  } else {
    optimizer = std::make_unique<torch::optim::SGD>(ddp.parameters(), Sgd());
  }
  return TrainWrapped(job, strategy, *net, ddp, *optimizer);
}

absl::Status DataParallel(const Job& job) {
  ConvNet net;
  lockstep::DataParallel<ConvNetImpl> replicas(net, std::vector<at::Device>(job.workers, at::kCPU),
                                               [](at::Device) { return std::make_shared<ConvNetImpl>(); });
  lockstep::DataParallelStrategy strategy(replicas);
  torch::optim::SGD optimizer(net->parameters(), Sgd());
  return TrainWrapped(job, strategy, *net, replicas, optimizer);
}

absl::Status Single(const Job& job) {
  ConvNet net;
  lockstep::SingleStrategy strategy(*net);
  torch::optim::SGD optimizer(net->parameters(), Sgd());
  return TrainWrapped(job, strategy, *net, *net, optimizer);
}

absl::Status Pipelines(const Job& job, const ProcessGroupPtr& group) {
  LOCKSTEP_ASSIGN_OR_RETURN(const lockstep::RankGrid grid, lockstep::MakeRankGrid(group, 2));
  const auto stage = std::make_shared<StageImpl>(grid.stage == 0);
  lockstep::DistributedDataParallelOptions wrapping;
  wrapping.broadcast_buffers = false;
  const auto ddp = std::make_shared<lockstep::DistributedDataParallel<StageImpl>>(stage, grid.data, wrapping);
  lockstep::PipelineOptions options;
  options.loss = Loss;
  lockstep::Pipeline pipeline(ddp, grid.pipeline, options);
  torch::optim::SGD optimizer(stage->parameters(), Sgd());
  lockstep::PipelineState state(*stage, optimizer, grid.pipeline);
  lockstep::PipelineStrategy strategy(pipeline, *ddp, group, grid, state);
  return Train(
      job, strategy, *stage, optimizer,
      [&](TensorBatch& batch) {
        StepOutput output{pipeline.Step(batch.data, batch.target), batch.data.size(0)};
        output.went_backward = true;
        return output;
      },
      [&](TensorBatch& batch) {
        const at::Tensor logits = pipeline.Evaluate(batch.data);
        return StepOutput{logits.defined() ? Loss(logits, batch.target) : at::Tensor(), batch.data.size(0)};
      });
}

absl::Status ParameterServers(const Job& job, const ProcessGroupPtr& group) {
  lockstep::ParameterServerLayout layout;
  if (job.way == "async_parameter_server") layout.mode = lockstep::ParameterServerLayout::Mode::kAsynchronous;
  const auto factory = lockstep::MakesOptimizer<torch::optim::SGD>(Sgd());
  ConvNet net;
  if (layout.is_server(lockstep::GetRank(group))) {
    LOCKSTEP_ASSIGN_OR_RETURN(const auto server, lockstep::ParameterServer::Connect(group, layout, *net, factory));
    return server->Serve();
  }
  // Also asynchronous ones, to add their rates up.
  LOCKSTEP_ASSIGN_OR_RETURN(const auto workers, lockstep::NewWorkerGroup(group, layout));
  LOCKSTEP_ASSIGN_OR_RETURN(const auto optimizer,
                            lockstep::ParameterServerOptimizer::Connect(group, layout, *net, factory));
  lockstep::ParameterServerStrategy strategy(*net, layout, group, workers);
  LOCKSTEP_RETURN_IF_ERROR(TrainWrapped(job, strategy, *net, *net, *optimizer));
  optimizer->Finish();
  return absl::OkStatus();
}

absl::Status Run(const Job& job, const ProcessGroupPtr& group) {
  torch::manual_seed(1);
  if (job.way == "single") return Single(job);
  if (job.way == "data_parallel") return DataParallel(job);
  if (job.way == "ddp" || job.way == "zero1") return Ddp(job, group);
  if (job.way == "pipeline") return Pipelines(job, group);
  if (job.way == "parameter_server" || job.way == "async_parameter_server") return ParameterServers(job, group);
  return absl::InvalidArgumentError("no such way: " + job.way);
}

}  // namespace

int main(int argc, char** argv) {
  lockstep::KeepFreedMemory();
  google::InitGoogleLogging(argv[0]);
  if (argc != 5) {
    std::fprintf(stderr, "usage: %s WAY WORKERS BATCH STEPS\n", argv[0]);
    return 2;
  }
  const Job job{argv[1], std::atoi(argv[2]), std::atoll(argv[3]), std::atoll(argv[4])};
  at::set_num_threads(1);
  return lockstep::RankMain({}, [&](const ProcessGroupPtr& group) { return Run(job, group); });
}
