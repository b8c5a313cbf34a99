#include <ATen/Functions.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/sgd.h>
#include <torch/utils.h>

#include "ddp/boundary_stop.h"
#include "ddp/striped_sampler.h"
#include "lockstep/amp/no_scaler.h"
#include "lockstep/comm/process_group.h"
#include "lockstep/data/tensor_loader.h"
#include "lockstep/ddp/distributed_data_parallel.h"
#include "lockstep/trainer/trainer.h"

namespace embedding {
namespace {

TEST(Training, RunsWithASamplerAndAStopCriterionOfOurOwn) {
  const lockstep::ProcessGroupPtr group = lockstep::InitProcessGroup().value();
  ASSERT_EQ(lockstep::GetWorldSize(group), 2);
  torch::manual_seed(1);
  const at::Tensor x = at::randn({64, 3}), y = x.sum(1);
  torch::nn::Linear layer(3, 1);
  lockstep::DistributedDataParallel ddp(layer, group);
  torch::optim::SGD optimizer(ddp.parameters(), torch::optim::SGDOptions(0.1));
  lockstep::TensorLoader train(x, y, StripedSampler(64, 2, lockstep::GetRank(group)), {8});
  lockstep::TensorLoader validation(x, y, StripedSampler(64, 2, lockstep::GetRank(group)), {8});
  lockstep::NoScaler scaler;
  BoundaryStop stop(0.01);
  lockstep::DdpStrategy strategy(ddp);

  lockstep::Trainer<lockstep::TensorBatch>::Pieces pieces;
  pieces.state = {layer.get(), &optimizer, &scaler, &stop};
  pieces.strategy = &strategy;
  pieces.train_step = [&](lockstep::TensorBatch& batch) {
    const at::Tensor loss = (ddp.forward(batch.data).squeeze(1) - batch.target).square().mean();
    return lockstep::StepOutput{loss, batch.target.size(0)};
  };
  pieces.eval_step = pieces.train_step;
  pieces.train = &train;
  pieces.validation = &validation;
  lockstep::TrainerOptions options;
  options.epochs = 100;
  const absl::Status status = lockstep::Trainer<lockstep::TensorBatch>(std::move(pieces), options).Fit();
  ASSERT_TRUE(status.ok()) << status;
  EXPECT_LT(stop.counter(), 100);
  for (const auto& other : lockstep::AllGather(layer->weight.detach(), group)) EXPECT_TRUE(other.equal(layer->weight));
}

}  // namespace
}  // namespace embedding
