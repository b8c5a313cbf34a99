#pragma once

#include <ATen/Functions.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/sgd.h>
#include <torch/utils.h>

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/amp/no_scaler.h"
#include "lockstep/comm/process_group.h"
#include "lockstep/ddp/distributed_data_parallel.h"
#include "lockstep/trainer/trainer.h"
#include "never_stop.h"

// A small training over all ranks of the test.
namespace lockstep {

inline const ProcessGroupPtr& Group() {
  static const ProcessGroupPtr group = InitProcessGroup().value();
  return group;
}
inline int Rank() { return GetRank(Group()); }
inline int World() { return GetWorldSize(Group()); }

/// Batches of the given sizes; the numbers in them depend on rank and place only.
class Batches : public BatchSource<at::Tensor> {
 public:
  explicit Batches(std::vector<int64_t> sizes, bool tells = true) : sizes_(std::move(sizes)), tells_(tells) {}
  static at::Tensor Make(int rank, size_t index, int64_t size) {
    return at::sin(at::arange(3. * static_cast<double>(size), at::kDouble).view({size, 3}) + rank * 5 +
                   static_cast<double>(index) * 11);
  }
  void StartEpoch(size_t) override { next_ = 0; }
  std::optional<at::Tensor> Next() override {
    if (next_ == sizes_.size()) return std::nullopt;
    const size_t index = next_++;
    return Make(Rank(), index, sizes_[index]);
  }
  size_t num_batches() const override { return tells_ ? sizes_.size() : 0; }

 private:
  const std::vector<int64_t> sizes_;
  const bool tells_;
  size_t next_ = 0;
};

struct Steps : TrainObserver {
  void OnStepStart() override { ++starts; }
  void OnStepEnd(StepInfo& info) override {
    losses.push_back(looks ? info.LossValue() : 0);
    rates.push_back(info.learning_rate);
    planned = info.steps;
  }
  void OnValidated(const EpochInfo& info) override { metrics = info.metrics; }
  bool looks = true;
  int starts = 0;
  size_t planned = 0;
  std::vector<double> losses, rates;
  std::map<std::string, double> metrics;
};

inline at::Tensor Loss(torch::nn::LinearImpl& layer, const at::Tensor& x) {
  return (layer.forward(x) - x.sum(1, true)).square().mean();
}

/// A linear layer trained on the batches of `mine`.
struct TrainingRun {
  explicit TrainingRun(std::vector<int64_t> mine, bool tells = true) : train(std::move(mine), tells) {
    torch::manual_seed(1);
    layer = torch::nn::Linear(3, 1);
    layer->to(at::kDouble);
    ddp = std::make_unique<DistributedDataParallel<torch::nn::LinearImpl>>(layer, Group());
    optimizer = std::make_unique<torch::optim::SGD>(ddp->parameters(), torch::optim::SGDOptions(0.05));
    pieces.state = {layer.get(), optimizer.get(), &scaler, &never};
    pieces.strategy = &strategy.emplace(*ddp);
    pieces.train_step = [this](at::Tensor& x) {
      const at::Tensor error = (ddp->forward(x) - x.sum(1, true)).square();
      return StepOutput{error.mean() * factor, x.size(0), {{"ones", at::full({}, static_cast<double>(x.size(0)))}}};
    };
    pieces.eval_step = pieces.train_step;
    pieces.train = &train;
    pieces.validation = &validation;
    pieces.observers = {&steps};
  }
  absl::Status Fit() { return Trainer<at::Tensor>(pieces, options).Fit(); }

  Batches train, validation{{2}};
  torch::nn::Linear layer{nullptr};
  std::unique_ptr<DistributedDataParallel<torch::nn::LinearImpl>> ddp;
  std::optional<DdpStrategy> strategy;
  std::unique_ptr<torch::optim::SGD> optimizer;
  NoScaler scaler;
  NeverStop never;
  Steps steps;
  double factor = 1;
  Trainer<at::Tensor>::Pieces pieces;
  TrainerOptions options;
};

/// The same layer in one process: each step's loss is a function of the layer.
inline torch::nn::Linear Reference(const std::vector<std::function<at::Tensor(torch::nn::LinearImpl&)>>& losses) {
  torch::manual_seed(1);
  torch::nn::Linear layer(3, 1);
  layer->to(at::kDouble);
  torch::optim::SGD optimizer(layer->parameters(), torch::optim::SGDOptions(0.05));
  for (const auto& loss : losses) {
    optimizer.zero_grad();
    loss(*layer).backward();
    optimizer.step();
  }
  return layer;
}

inline void ExpectEqual(const torch::nn::Linear& a, const torch::nn::Linear& b) {
  EXPECT_TRUE(at::allclose(a->weight, b->weight, 1e-10, 1e-12)) << a->weight << b->weight;
  EXPECT_TRUE(at::allclose(a->bias, b->bias, 1e-10, 1e-12));
}

/// The samples of several batches of all ranks.
inline at::Tensor All(size_t from, size_t to, const std::function<int64_t(int, size_t)>& size) {
  std::vector<at::Tensor> parts;
  for (int rank = 0; rank < World(); ++rank) {
    for (size_t i = from; i < to; ++i) parts.push_back(Batches::Make(rank, i, size(rank, i)));
  }
  return at::cat(parts);
}

}  // namespace lockstep
