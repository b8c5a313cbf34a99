// A training program of one's own, with the trainer: a small net on made-up numbers.
//   ./bazelw build //launch:lockstep_run //examples:with_trainer
//   bazel-bin/launch/lockstep_run --standalone --nproc_per_node=2 bazel-bin/examples/with_trainer [CHECKPOINT]

#include <ATen/Functions.h>
#include <torch/nn/functional/loss.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/sgd.h>
#include <torch/utils.h>

#include "lockstep/amp/no_scaler.h"
#include "lockstep/checkpoint/early_stopping.h"
#include "lockstep/checkpoint/pth.h"
#include "lockstep/data/tensor_loader.h"
#include "lockstep/ddp/distributed_data_parallel.h"
#include "lockstep/launch/rank_main.h"
#include "lockstep/samplers/distributed_sampler.h"
#include "lockstep/trainer/progress.h"
#include "lockstep/trainer/trainer.h"

using namespace lockstep;  // NOLINT: an example

absl::Status Train(const std::string& best_path, const ProcessGroupPtr& group) {
  torch::manual_seed(1);  // the same data and weights on all ranks
  const at::Tensor x = at::randn({2000, 8}), y = x.narrow(1, 0, 4).sum(1).gt(0).to(at::kLong);
  torch::nn::Sequential net(torch::nn::Linear(8, 32), torch::nn::ReLU(), torch::nn::Linear(32, 2));
  DistributedDataParallel<torch::nn::SequentialImpl> ddp(net, group);
  torch::optim::SGD optimizer(ddp.parameters(), torch::optim::SGDOptions(0.1));

  // What goes into a checkpoint, the way to train, and what the two have to do with each other.
  NoScaler scaler;                                                         // GradScaler with autocast to float16
  EarlyStopping stop({"val_accuracy", EarlyStoppingOptions::Mode::kMax});  // of the metrics below, with val_ in front
  DdpStrategy strategy(ddp);
  const auto loader = [&](int64_t begin, int64_t length, bool train) {
    DistributedSampler sampler(length, strategy.share().count, strategy.share().index,
                               {/*shuffle=*/train, /*seed=*/1, /*drop_last=*/false, /*pad=*/train});
    return TensorLoader(x.narrow(0, begin, length), y.narrow(0, begin, length), sampler, {/*batch_size=*/20});
  };
  TensorLoader train = loader(0, 1600, true), validation = loader(1600, 400, false);

  const auto step = [&](TensorBatch& batch) {
    const at::Tensor logits = ddp.forward(batch.data);
    StepOutput output;
    output.loss = torch::nn::functional::cross_entropy(logits, batch.target);  // a mean over the batch
    output.samples = batch.target.size(0);
    output.sums["accuracy"] = logits.argmax(1).eq(batch.target).sum();  // sums; means come out, over all ranks
    return output;
  };
  MeanPrinter printer(group, /*every=*/20);
  PthWriter writer;
  Trainer<TensorBatch>::Pieces pieces;
  pieces.state = {net.ptr().get(), &optimizer, &scaler, &stop};
  pieces.strategy = &strategy;
  pieces.train_step = step;
  pieces.eval_step = step;
  pieces.train = &train;
  pieces.validation = &validation;
  pieces.writer = &writer;
  pieces.observers = {&printer};
  TrainerOptions options;
  options.epochs = 5;
  options.best_path = best_path;
  return Trainer<TensorBatch>(pieces, options).Fit();
}

int main(int argc, char** argv) {
  return RankMain({},
                  [&](const ProcessGroupPtr& group) { return Train(argc > 1 ? argv[1] : "with_trainer.pt", group); });
}
