// The trainer on workers: it trains, saves and goes on as with any other optimizer.

#include <gtest/gtest.h>
#include <torch/nn/functional/loss.h>
#include <torch/optim/adam.h>
#include <unistd.h>

#include <cstdlib>
#include <memory>
#include <string>
#include <utility>

#include "lockstep/amp/no_scaler.h"
#include "lockstep/checkpoint/early_stopping.h"
#include "lockstep/comm/texts.h"
#include "lockstep/data/tensor_loader.h"
#include "lockstep/parallel/parameter_server.h"
#include "lockstep/parallel/parameter_server_optimizer.h"
#include "lockstep/samplers/distributed_sampler.h"
#include "lockstep/trainer/parameter_server_strategy.h"
#include "lockstep/trainer/trainer.h"
#include "parameter_server_net.h"

namespace lockstep {
namespace {

const ProcessGroupPtr& World() {
  static const ProcessGroupPtr group = InitProcessGroup().value();
  return group;
}

std::string Folder() {
  const char* const folder = std::getenv("TEST_TMPDIR");
  return BroadcastString(std::string(folder == nullptr ? "/tmp" : folder) + "/trainer" + std::to_string(getpid()),
                         World());
}

/// One run of `epochs`, from `resumed` where there is one, which saves after each epoch to `folder`. The weights.
at::Tensor Fit(size_t epochs, const std::string& folder, const std::string& resumed) {
  ParameterServerLayout layout;
  layout.servers = 2;
  const auto factory = MakesOptimizer<torch::optim::Adam>(torch::optim::AdamOptions(1e-2));
  Net net = MakeNet();
  const int rank = GetRank(World());
  if (layout.is_server(rank)) {
    auto server = ParameterServer::Connect(World(), layout, *net, factory).value();
    const absl::Status served = server->Serve();
    EXPECT_TRUE(served.ok()) << served;
    Barrier(World());
    return net->a->weight;
  }
  const ProcessGroupPtr workers = NewWorkerGroup(World(), layout).value();
  auto optimizer = ParameterServerOptimizer::Connect(World(), layout, *net, factory).value();
  torch::manual_seed(5);
  const at::Tensor data = at::randn({64, 6}), target = at::randint(3, {64});
  DistributedSampler sampler(64, GetWorldSize(workers), layout.worker_index(rank));
  LoaderOptions loading;
  loading.batch_size = 8;
  TensorLoader train(data, target, sampler, loading), validation(data, target, sampler, loading);
  NoScaler scaler;
  EarlyStopping stop({"val_loss"});
  PthWriter writer;
  CheckpointerOptions saving;
  saving.folder = folder;
  Checkpointer checkpointer(saving, writer, workers);
  ParameterServerStrategy strategy(*net, layout, World(), workers);
  Trainer<TensorBatch>::Pieces pieces;
  pieces.state = {net.get(), optimizer.get(), &scaler, &stop};
  pieces.strategy = &strategy;
  pieces.train_step = [&](TensorBatch& batch) {
    return StepOutput{torch::nn::functional::cross_entropy(net->forward(batch.data), batch.target),
                      batch.target.size(0)};
  };
  pieces.eval_step = pieces.train_step;
  pieces.train = &train;
  pieces.validation = &validation;
  pieces.checkpointer = &checkpointer;
  TrainerOptions options;
  options.epochs = epochs;
  options.run.checkpoints.epochs = 1;
  Trainer<TensorBatch> trainer(pieces, options);
  if (!resumed.empty()) {
    const Value checkpoint = LoadPth(Checkpointer::Latest(resumed).value()).value();
    const absl::Status status = trainer.Resume(checkpoint);
    EXPECT_TRUE(status.ok()) << status;
    EXPECT_EQ(trainer.epoch(), 2u);
  }
  const absl::Status fitted = trainer.Fit();
  EXPECT_TRUE(fitted.ok()) << fitted;
  optimizer->Finish();
  Barrier(World());
  return net->a->weight;
}

TEST(ParameterServerTrainer, AResumedRunEndsWhereOneThatDidNotStopDoes) {
  const std::string folder = Folder();
  const at::Tensor whole = Fit(3, folder + "whole", "").clone();
  Fit(1, folder + "first", "");
  const at::Tensor resumed = Fit(3, folder + "second", folder + "first");
  if (GetRank(World()) == 1) return;  // the second server has other tensors
  EXPECT_TRUE(whole.equal(resumed));
  EXPECT_FALSE(whole.equal(MakeNet()->a->weight));
}

}  // namespace
}  // namespace lockstep
