#include "lockstep/trainer/trainer.h"
#include "never_stop.h"

#include <ATen/Functions.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/sgd.h>
#include <torch/utils.h>
#include <unistd.h>

#include <cstdlib>
#include <fstream>
#include <limits>
#include <memory>
#include <optional>
#include <nlohmann/json.hpp>

#include "lockstep/amp/grad_scaler.h"
#include "lockstep/amp/no_scaler.h"
#include "lockstep/checkpoint/early_stopping.h"
#include "lockstep/checkpoint/pth.h"
#include "lockstep/comm/process_group.h"
#include "lockstep/comm/texts.h"
#include "lockstep/data/tensor_loader.h"
#include "lockstep/ddp/distributed_data_parallel.h"
#include "lockstep/optim/reduce_on_plateau.h"
#include "lockstep/samplers/distributed_sampler.h"
#include "lockstep/trainer/metrics_log.h"

namespace lockstep {
namespace {

const ProcessGroupPtr& Group() {
  static const ProcessGroupPtr group = InitProcessGroup().value();
  return group;
}
int Rank() { return GetRank(Group()); }
int World() { return GetWorldSize(Group()); }

/// The same folder on all ranks of a test.
std::string Folder() {
  std::string mine;
  if (Rank() == 0) {
    const char* base = std::getenv("TEST_TMPDIR");
    mine = std::string(base == nullptr ? "/tmp" : base) + "/trainer.XXXXXX";
    mine = mkdtemp(mine.data());
  }
  return AllGatherString(mine, Group())[0];
}

/// Counts what it is told.
struct Counter : TrainObserver {
  void OnEpochEnd(const EpochInfo& info) override {
    ++epochs;
    last = info.metrics;
  }
  void OnStopped(const std::string&) override { stopped = true; }
  void OnStepEnd(StepInfo& info) override {
    ++steps;
    if (look) info.LossValue();
  }
  int epochs = 0, steps = 0;
  bool stopped = false, look = false;
  std::map<std::string, double> last;
};

/// A linear model that learns y = sum of x, with everything that a trainer needs.
struct TrainingRun {
  explicit TrainingRun(int64_t samples = 40, int64_t validation_samples = 101) {
    torch::manual_seed(1);
    layer = torch::nn::Linear(3, 1);
    const at::Tensor x = at::randn({samples, 3}), v = at::randn({validation_samples, 3});
    const auto loader = [](const at::Tensor& data, bool train) {
      DistributedSampler sampler(data.size(0), World(), Rank(), {train, 3, false, train});
      return std::make_unique<TensorLoader>(data, data.sum(1), sampler, LoaderOptions{4, false, 2, sampler.size()});
    };
    train = loader(x, true);
    validation = loader(v, false);
    ddp = std::make_unique<DistributedDataParallel<torch::nn::LinearImpl>>(layer, Group());
    optimizer = std::make_unique<torch::optim::SGD>(ddp->parameters(), torch::optim::SGDOptions(0.05));
    pieces.state = {layer.get(), optimizer.get(), &scaler, &never};
    pieces.strategy = &strategy.emplace(*ddp);
    pieces.eval_step = [this](TensorBatch& batch) {
      const at::Tensor error = (ddp->forward(batch.data).squeeze(1) - batch.target).square();
      return StepOutput{error.mean(), batch.target.size(0), {{"ones", at::ones_like(error).sum()}}};
    };
    pieces.train_step = [this](TensorBatch& batch) {
      StepOutput output = pieces.eval_step(batch);
      output.loss = output.loss * loss_factor;
      return output;
    };
    pieces.train = train.get();
    pieces.validation = validation.get();
    pieces.writer = &writer;
    pieces.observers = {&counter};
    options.epochs = 3;
  }

  torch::nn::Linear layer{nullptr};
  std::unique_ptr<TensorLoader> train, validation;
  std::unique_ptr<DistributedDataParallel<torch::nn::LinearImpl>> ddp;
  std::optional<DdpStrategy> strategy;
  std::unique_ptr<torch::optim::SGD> optimizer;
  NoScaler scaler;
  NeverStop never;
  PthWriter writer;
  Counter counter;
  double loss_factor = 1;
  Trainer<TensorBatch>::Pieces pieces;
  TrainerOptions options;
};

TEST(Trainer, TrainsForTheEpochsItIsGiven) {
  TrainingRun s;
  s.options.epochs = 30;
  const absl::Status status = Trainer<TensorBatch>(s.pieces, s.options).Fit();
  ASSERT_TRUE(status.ok()) << status;
  EXPECT_EQ(s.counter.epochs, 30);
  EXPECT_LT(s.counter.last["val_loss"], 0.3);
  EXPECT_EQ(s.counter.last["train_ones"], 1);
  EXPECT_EQ(s.counter.last["learning_rate"], 0.05);
}

TEST(Trainer, AScheduleGoesByAMetricOfTheEpoch) {
  ReduceOnPlateauOptions reduce;
  reduce.monitor = "val_ones";  // always 1
  reduce.patience = 0;
  TrainingRun s;
  ReduceOnPlateau schedule(*s.optimizer, reduce);
  s.pieces.scheduler = &schedule;
  ASSERT_TRUE(Trainer<TensorBatch>(s.pieces, s.options).Fit().ok());
  EXPECT_DOUBLE_EQ(schedule.Rates()[0], 0.0005) << "two of three epochs did not improve";
  reduce.monitor = "val_accuracy";
  ReduceOnPlateau other(*s.optimizer, reduce);
  s.pieces.scheduler = &other;
  const absl::Status status = Trainer<TensorBatch>(s.pieces, s.options).Fit();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_NE(status.message().find("no metric 'val_accuracy'; known: "), std::string::npos) << status;
}

TEST(Trainer, ValidationCountsEachSampleOnce) {
  for (int64_t n : {101, 1, 4, 5}) {
    TrainingRun s(40, n);
    Trainer<TensorBatch> trainer(s.pieces, s.options);
    const auto metrics = trainer.Evaluate(*s.validation, "val_");
    ASSERT_TRUE(metrics.ok()) << metrics.status();
    EXPECT_EQ(metrics->at("val_samples"), n);
    EXPECT_EQ(metrics->at("val_ones"), 1);
    // The mean over all samples, by hand.
    torch::manual_seed(1);
    torch::nn::Linear(3, 1);
    at::randn({40, 3});
    const at::Tensor v = at::randn({n, 3});
    const c10::InferenceMode guard;
    const double expected = (s.layer->forward(v).squeeze(1) - v.sum(1)).square().mean().item<double>();
    EXPECT_NEAR(metrics->at("val_loss"), expected, 1e-5);
  }
}

/// Wants to stop on the last rank only, after two validations.
class LastRankStops : public NeverStop {
 public:
  absl::StatusOr<Verdict> Check(const std::map<std::string, double>&) override {
    return Verdict{false, Rank() == World() - 1 && ++calls_ == 2};
  }

 private:
  int calls_ = 0;
};

TEST(Trainer, AllRanksStopTogether) {
  TrainingRun s;
  LastRankStops stop;
  s.pieces.state.stop = &stop;
  s.options.epochs = 10;
  ASSERT_TRUE(Trainer<TensorBatch>(s.pieces, s.options).Fit().ok());
  EXPECT_EQ(s.counter.epochs, 2);
  EXPECT_TRUE(s.counter.stopped);
}

TEST(Trainer, StopsEarlyAndKeepsTheBest) {
  TrainingRun s;
  EarlyStoppingOptions stopping;
  stopping.patience = 2;
  stopping.min_delta = 1000;  // only the first is better
  EarlyStopping early(stopping);
  s.pieces.state.stop = &early;
  s.options.epochs = 10;
  const std::string folder = Folder();
  s.options.best_path = folder + "/best.pt";
  ASSERT_TRUE(Trainer<TensorBatch>(s.pieces, s.options).Fit().ok());
  EXPECT_EQ(s.counter.epochs, 3);
  Barrier(Group());
  EXPECT_EQ(*LoadPth(s.options.best_path)->find("epoch")->number(), 1);
}

/// Every epoch is the best.
class AlwaysBetter : public NeverStop {
 public:
  absl::StatusOr<Verdict> Check(const std::map<std::string, double>&) override { return Verdict{true, false}; }
};

TEST(Trainer, ResumesAsIfItHadNotStopped) {
  const std::string path = Folder() + "/last.pt";
  TrainingRun whole, first, second;
  for (TrainingRun* s : {&whole, &first, &second}) s->options.epochs = 4;
  ASSERT_TRUE(Trainer<TensorBatch>(whole.pieces, whole.options).Fit().ok());
  first.options.epochs = 2;
  AlwaysBetter better;
  first.pieces.state.stop = &better;
  first.options.best_path = path;
  ASSERT_TRUE(Trainer<TensorBatch>(first.pieces, first.options).Fit().ok());
  Barrier(Group());
  Trainer<TensorBatch> rest(second.pieces, second.options);
  const absl::Status resumed = rest.Resume(*LoadPth(path));
  ASSERT_TRUE(resumed.ok()) << resumed;
  EXPECT_EQ(rest.epoch(), 3);
  ASSERT_TRUE(rest.Fit().ok());
  EXPECT_EQ(second.counter.epochs, 2);
  EXPECT_EQ(second.counter.last["val_loss"], whole.counter.last["val_loss"]);
  EXPECT_TRUE(second.layer->weight.equal(whole.layer->weight));
}

/// Remembers a number; rank 0's is saved.
class Remembers : public Stateful {
 public:
  explicit Remembers(int64_t number) : number(number) {}
  Value SaveState() override {
    Barrier(Group());  // every rank is asked
    return Value(number);
  }
  absl::Status LoadState(const Value& state) override {
    if (!state.number().ok()) return absl::InvalidArgumentError("no number");
    number = static_cast<int64_t>(*state.number());
    return absl::OkStatus();
  }
  int64_t number;
};

TEST(Trainer, OtherStatesGoIntoTheCheckpoint) {
  const std::string path = Folder() + "/last.pt";
  TrainingRun s;
  Remembers before(40 + Rank()), after(0);
  s.pieces.state.others = {{"hook", &before}};
  AlwaysBetter better;
  s.pieces.state.stop = &better;
  s.options.best_path = path;
  s.options.epochs = 1;
  ASSERT_TRUE(Trainer<TensorBatch>(s.pieces, s.options).Fit().ok());
  s.pieces.state.others = {{"hook", &after}, {"new", &before}};
  ASSERT_TRUE(LoadTrainingState(*LoadPth(path), s.pieces.state).ok());
  EXPECT_EQ(after.number, 40);
  EXPECT_EQ(before.number, 40 + Rank());
}

TEST(Trainer, ACheckpointThatCannotBeWrittenIsAnErrorOnEveryRank) {
  TrainingRun s;
  AlwaysBetter better;
  s.pieces.state.stop = &better;
  s.options.best_path = "/proc/nowhere/best.pt";
  const absl::Status status = Trainer<TensorBatch>(s.pieces, s.options).Fit();
  ASSERT_FALSE(status.ok());
  EXPECT_NE(status.message().find("/proc/nowhere"), std::string::npos) << status;
}

TEST(Trainer, ALossThatIsNoNumberIsAnErrorWhetherOrNotSomebodyLooks) {
  for (const bool look : {false, true}) {
    TrainingRun s;
    s.counter.look = look;
    s.loss_factor = std::nan("");
    const absl::Status status = Trainer<TensorBatch>(s.pieces, s.options).Fit();
    EXPECT_NE(status.message().find("epoch 1, step 1: the loss is nan"), std::string::npos) << status;
  }
}

TEST(Trainer, ADynamicScalerMaySkipButNotForEver) {
  TrainingRun s;
  GradScalerOptions options;
  options.group = Group();
  GradScaler scaler(options);
  s.pieces.state.scaler = &scaler;
  s.loss_factor = std::numeric_limits<double>::infinity();
  s.options.finite.max_skipped_steps = 5;
  const absl::Status status = Trainer<TensorBatch>(s.pieces, s.options).Fit();
  ASSERT_FALSE(status.ok());
  EXPECT_NE(status.message().find("5 steps in a row"), std::string::npos) << status;
  EXPECT_EQ(scaler.scale(), 65536. / 32);
}

TEST(GradScaler, AnOverflowOnOneRankSkipsTheStepOnAll) {
  GradScalerOptions options;
  options.group = Group();
  GradScaler scaler(options);
  at::Tensor p = at::ones({2}).requires_grad_();
  torch::optim::SGD optimizer({p}, torch::optim::SGDOptions(1.));
  scaler.Scale((p * (Rank() == World() - 1 ? std::numeric_limits<float>::infinity() : 1.f)).sum()).backward();
  EXPECT_FALSE(scaler.Step(optimizer));
  scaler.Update();
  EXPECT_EQ(scaler.scale(), 32768);
  EXPECT_EQ(p[0].item<float>(), 1);
}

/// A user's own sampler: in epoch e it gives sample e, four times.
class EpochIsTheSample : public torch::data::samplers::DistributedSampler<> {
 public:
  EpochIsTheSample() : torch::data::samplers::DistributedSampler<>(10) {}
  void reset(std::optional<size_t>) override { left_ = 4; }
  std::optional<std::vector<size_t>> next(size_t n) override {
    if (left_ == 0) return std::nullopt;
    const size_t take = std::min(left_, n);
    left_ -= take;
    return std::vector<size_t>(take, epoch());
  }
  void save(torch::serialize::OutputArchive&) const override {}
  void load(torch::serialize::InputArchive&) override {}

 private:
  size_t left_ = 0;
};

TEST(Trainer, AUsersSamplerSeesEachEpoch) {
  TrainingRun s;
  TensorLoader loader(at::arange(30, at::kFloat).view({10, 3}), at::arange(10, at::kFloat), EpochIsTheSample(), {2});
  std::vector<double> seen;
  const auto step = s.pieces.train_step;
  s.pieces.train = &loader;
  s.pieces.train_step = [&](TensorBatch& batch) {
    seen.push_back(batch.target[0].item<double>());
    return step(batch);
  };
  s.optimizer->param_groups()[0].options().set_lr(0);
  ASSERT_TRUE(Trainer<TensorBatch>(s.pieces, s.options).Fit().ok());
  EXPECT_EQ(seen, (std::vector<double>{0, 0, 1, 1, 2, 2}));
}

TEST(MetricsLog, WritesAnObjectPerEpochAndPerNSteps) {
  TrainingRun s;
  const std::string folder = Folder();
  MetricsLog log(folder, 2);
  if (Rank() == 0) {
    ASSERT_TRUE(log.Open().ok());
    s.pieces.observers.push_back(&log);
  }
  ASSERT_TRUE(Trainer<TensorBatch>(s.pieces, s.options).Fit().ok());
  Barrier(Group());
  const auto lines = [&](const std::string& name) {
    std::ifstream file(folder + "/" + name);
    std::vector<nlohmann::json> all;
    for (std::string line; std::getline(file, line);) all.push_back(nlohmann::json::parse(line));
    return all;
  };
  const auto epochs = lines("metrics.jsonl");
  ASSERT_EQ(epochs.size(), 3u);
  EXPECT_EQ(epochs[2]["epoch"], 3);
  for (const char* key : {"train_loss", "val_loss", "learning_rate", "stop_counter", "images_per_second", "seconds"}) {
    EXPECT_TRUE(epochs[2].contains(key)) << key;
  }
  const auto steps = lines("steps.jsonl");
  ASSERT_EQ(steps.size(), 3u * (s.train->num_batches() / 2));
  EXPECT_EQ(steps[0]["step"], 2);
  EXPECT_EQ(steps[0]["loss_scale"], 1);
}

}  // namespace
}  // namespace lockstep
