// The MNIST training of //examples/mnist with the pieces and without the trainer:
//   ./bazelw build //launch:lockstep_run //examples:by_hand
//   bazel-bin/launch/lockstep_run --standalone --nproc_per_node=2 bazel-bin/examples/by_hand [EPOCHS] [DATA]

#include <torch/nn/functional/loss.h>
#include <torch/optim/sgd.h>
#include <torch/utils.h>

#include <cstdio>
#include <cstdlib>

#include "lockstep/checkpoint/early_stopping.h"
#include "lockstep/checkpoint/pth.h"
#include "lockstep/checkpoint/state_dict.h"
#include "lockstep/data/mnist.h"
#include "lockstep/data/random_split.h"
#include "lockstep/data/tensor_loader.h"
#include "lockstep/ddp/distributed_data_parallel.h"
#include "lockstep/launch/rank_main.h"
#include "lockstep/metrics/metric_sums.h"
#include "lockstep/models/conv_net.h"
#include "lockstep/nn/batch_norm.h"
#include "lockstep/samplers/distributed_sampler.h"

using namespace lockstep;  // NOLINT: an example

absl::Status Train(int epochs, const char* path, const ProcessGroupPtr& group) {
  auto data = LoadMnist(path);
  if (!data.ok()) return data.status();
  auto parts = RandomSplit(data->labels.numel(), {0.8, 0.1, 0.1}, /*seed=*/1206);
  if (!parts.ok()) return parts.status();
  const auto loader = [&](const at::Tensor& part, bool train) {
    DistributedSampler sampler(part.numel(), GetWorldSize(group), GetRank(group), {train, 1206, false, train});
    return TensorLoader(data->images.index_select(0, part), data->labels.index_select(0, part), sampler, {256},
                        [](TensorBatch b, const lockstep::BatchKeys&) {
                          return TensorBatch{b.data.to(at::kFloat).div_(255), b.target};
                        });
  };
  TensorLoader training = loader((*parts)[0], true), validation = loader((*parts)[1], false),
               test = loader((*parts)[2], false);

  torch::manual_seed(1206);
  models::ConvNet model;
  torch::manual_seed(1206 + GetRank(group));
  if (auto bound = nn::ConvertSyncBatchNorm(*model, group); !bound.ok()) return bound.status();
  DistributedDataParallel<models::ConvNetImpl> ddp(model, group);
  torch::optim::SGD optimizer(ddp.parameters(), torch::optim::SGDOptions(0.05).weight_decay(5e-5));
  EarlyStopping stopping({"val_accuracy", EarlyStoppingOptions::Mode::kMax});

  const auto evaluate = [&](TensorLoader& samples) {  // over all ranks, each sample once; every rank knows the result
    ddp.eval();
    const at::NoGradGuard no_grad;
    MetricSums sums;
    samples.StartEpoch(0);
    while (auto batch = samples.Next()) {
      sums.Add("val_accuracy", ddp.forward(batch->data).argmax(1).eq(batch->target).sum());
      sums.AddSamples(batch->target.size(0));
    }
    return sums.Reduce(group).means;
  };
  for (int epoch = 0; epoch < epochs; ++epoch) {
    ddp.train();
    training.StartEpoch(epoch);
    while (auto batch = training.Next()) {
      optimizer.zero_grad();
      torch::nn::functional::cross_entropy(ddp.forward(batch->data), batch->target).backward();
      optimizer.step();
    }
    const auto metrics = evaluate(validation);
    const auto verdict = stopping.Check(metrics);
    if (!verdict.ok()) return verdict.status();
    if (GetRank(group) == 0) std::printf("epoch %d: accuracy %.4f\n", epoch + 1, metrics.at("val_accuracy"));
    if (GetRank(group) == 0 && verdict->improved) {
      if (auto saved = SavePth(ModuleState(*model), "by_hand.pt"); !saved.ok()) return saved;
    }
    if (AnyRank(verdict->stop, group)) break;  // all ranks stop together
  }
  auto best = LoadPth("by_hand.pt");
  if (!best.ok()) return best.status();
  if (auto loaded = LoadModuleState(*best, *model); !loaded.ok()) return loaded;
  const double accuracy = evaluate(test).at("val_accuracy");
  if (GetRank(group) == 0) std::printf("test accuracy: %.4f\n", accuracy);
  return absl::OkStatus();
}

int main(int argc, char** argv) {
  const int epochs = argc > 1 ? std::atoi(argv[1]) : 3;
  if (epochs < 1) {
    std::fprintf(stderr, "error: usage: by_hand [EPOCHS] [DATA], EPOCHS at least 1\n");
    return 1;
  }
  const char* data = argc > 2 ? argv[2] : "/usr/share/datasets/fashion-mnist";
  return RankMain({}, [&](const ProcessGroupPtr& group) { return Train(epochs, data, group); });
}
