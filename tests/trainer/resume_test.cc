// Runs that stop and go on at every batch, against runs that never stopped, bit for bit.
#include <ATen/Functions.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/dropout.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/adam.h>
#include <torch/optim/schedulers/step_lr.h>
#include <torch/utils.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include "lockstep/amp/grad_scaler.h"
#include "lockstep/amp/master_weight_optimizer.h"
#include "lockstep/base/exit_code.h"
#include "lockstep/checkpoint/checkpoint_writer.h"
#include "lockstep/checkpoint/checkpointer.h"
#include "lockstep/checkpoint/early_stopping.h"
#include "lockstep/checkpoint/pth.h"
#include "lockstep/comm/process_group.h"
#include "lockstep/comm/texts.h"
#include "lockstep/data/tensor_loader.h"
#include "lockstep/ddp/distributed_data_parallel.h"
#include "lockstep/ddp/power_sgd_hook.h"
#include "lockstep/ddp/sharded_optimizer.h"
#include "lockstep/optim/lambda_schedule.h"
#include "lockstep/optim/warmup_schedules.h"
#include "lockstep/samplers/distributed_sampler.h"
#include "lockstep/trainer/gradient_window.h"
#include "lockstep/trainer/stop_signals.h"
#include "lockstep/trainer/trainer.h"

namespace lockstep {
namespace {

namespace fs = std::filesystem;

const ProcessGroupPtr& World() {
  static const ProcessGroupPtr group = InitProcessGroup().value();
  return group;
}

/// An empty folder, the same on all ranks.
std::string Folder() {
  std::string mine;
  if (GetRank(World()) == 0) {
    const char* base = std::getenv("TEST_TMPDIR");
    mine = std::string(base == nullptr ? "/tmp" : base) + "/resume.XXXXXX";
    mine = mkdtemp(mine.data());
  }
  return BroadcastString(mine, World());
}

/// Draws its samples when they are fetched, and something when a pass starts.
class DrawnBatches : public BatchSource<TensorBatch> {
 public:
  void StartEpoch(size_t) override {
    at::rand({1});
    left_ = 5;
  }
  std::optional<TensorBatch> Next() override {
    if (left_-- <= 0) return std::nullopt;
    const at::Tensor x = at::randn({3, 6});
    return TensorBatch{x, at::zeros({3}, at::kLong)};
  }

 private:
  int left_ = 0;
};

struct Scenario {
  std::string name;
  bool autocast = false, scaler = false, hook = false, drawn = false, static_graph = false, sharded = false,
       master = false, join = false, background = true, cosine = false;
  size_t accumulate = 1, batch_size = 3, prefetch = 2;
  int64_t samples = 46;
  bool drop_last = false;
  size_t epochs = 2;
};

/// A parameter without dimensions.
struct TemperatureImpl : torch::nn::Module {
  TemperatureImpl() : factor(register_parameter("factor", at::ones({}))) {}
  at::Tensor forward(const at::Tensor& x) { return x * factor; }
  at::Tensor factor;
};
TORCH_MODULE(Temperature);

/// Sees everything that a run does.
struct Seen : TrainObserver {
  void OnStepEnd(StepInfo& info) override {
    steps.push_back({info.epoch, info.step});
    losses.push_back(info.LossValue());
    rates.push_back(info.learning_rate);
  }
  void OnValidated(const EpochInfo& info) override {
    metrics[info.epoch] = info.metrics;
    for (const char* measured : {"images_per_second", "seconds"}) metrics[info.epoch].erase(measured);
  }
  std::vector<std::pair<size_t, size_t>> steps;
  std::vector<double> losses, rates;
  std::map<size_t, std::map<std::string, double>> metrics;
};

class SmallRun {
 public:
  SmallRun(const Scenario& scenario, const std::string& folder, ProcessGroupPtr group = World())
      : scenario_(scenario), group_(std::move(group)) {
    torch::manual_seed(7);
    net_ = torch::nn::Sequential(torch::nn::Linear(6, 40), torch::nn::Dropout(0.3), torch::nn::Linear(40, 20),
                                 torch::nn::Linear(20, 1));
    net_->push_back(Temperature());
    if (scenario.master) net_->to(at::kBFloat16);
    torch::manual_seed(100 + GetRank(group_));
    DistributedDataParallelOptions options;
    options.reducer.bucket_cap_bytes = options.reducer.first_bucket_cap_bytes = 1500;
    options.reducer.static_graph = scenario.static_graph;
    if (scenario.hook) {
      std::vector<NamedParameter> named;
      for (const auto& one : net_->named_parameters()) named.push_back({one.key(), one.value()});
      PowerSgdOptions power;
      power.start_step = 3;
      power.min_compression_rate = 1;
      options.reducer.hook = std::make_shared<PowerSgdHook>(named, group_, power);
    }
    if (scenario.sharded) {
      options.make_reducer = [this](auto parameters, const auto& over) {
        auto made = std::make_unique<ShardedReducer>(std::move(parameters), over);
        sharded_ = made.get();
        return made;
      };
    }
    ddp_ = std::make_unique<DistributedDataParallel<torch::nn::SequentialImpl>>(net_.ptr(), group_, options);
    using Master = MasterWeightOptimizer<torch::optim::Adam>;
    if (scenario.master) {
      optimizer_ = std::make_unique<ShardedOptimizer<Master>>(*sharded_, torch::optim::AdamOptions(0.02));
    } else if (scenario.sharded) {
      optimizer_ = std::make_unique<ShardedOptimizer<torch::optim::Adam>>(*sharded_, torch::optim::AdamOptions(0.02));
    } else {
      optimizer_ = std::make_unique<torch::optim::Adam>(net_->parameters(), torch::optim::AdamOptions(0.02));
    }
    if (scenario.cosine) {
      scheduler_ = std::make_unique<LambdaSchedule>(*optimizer_, CosineWithWarmup(3, 12));
    } else {
      scheduler_ = std::make_unique<torch::optim::StepLR>(*optimizer_, 3, 0.7);
    }
    GradScalerOptions scaling;
    scaling.enabled = scenario.scaler;
    scaling.growth_interval = 3;
    scaling.group = group_;
    scaler_ = std::make_unique<GradScaler>(scaling);
    EarlyStoppingOptions stopping;
    stopping.monitor = "val_loss";
    stopping_ = std::make_unique<EarlyStopping>(stopping);

    torch::manual_seed(7);
    const at::Tensor x = at::randn({scenario.samples, 6}).to(net_->parameters()[0].scalar_type());
    torch::manual_seed(100 + GetRank(group_));
    const auto loader = [&](bool train) {
      DistributedSamplerOptions sampling;
      sampling.shuffle = train;
      sampling.pad = train && !scenario.join;
      sampling.drop_last = train && scenario.drop_last;
      LoaderOptions loading;
      loading.drop_last = train && scenario.drop_last;
      loading.batch_size = scenario.batch_size;
      loading.prefetch = scenario.prefetch;
      DistributedSampler sampler(scenario.samples, GetWorldSize(group_), GetRank(group_), sampling);
      return std::make_unique<TensorLoader>(x, at::arange(scenario.samples), sampler, loading);
    };
    train_ = loader(true);
    validation_ = loader(false);

    pieces.state = {net_.ptr().get(), optimizer_.get(), scaler_.get(), stopping_.get()};
    pieces.strategy = &strategy_.emplace(*ddp_);
    pieces.train_step = [this](TensorBatch& batch) {
      for (int64_t i = 0; i < batch.target.numel(); ++i) taken.push_back(batch.target[i].item<int64_t>());
      return Step(batch);
    };
    pieces.eval_step = [this](TensorBatch& batch) { return Step(batch); };
    pieces.train = scenario.drawn ? static_cast<BatchSource<TensorBatch>*>(&drawn_) : train_.get();
    pieces.validation = validation_.get();
    pieces.scheduler = scheduler_.get();
    if (scenario.join) pieces.joinables = {ddp_.get()};
    pieces.observers = {&seen};
    this->options.epochs = scenario.epochs;
    this->options.schedule_each_step = true;
    this->options.gradients.accumulate = scenario.accumulate;
    if (scenario.autocast) this->options.autocast = at::kBFloat16;
    if (folder.empty()) return;
    CheckpointerOptions saving;
    saving.folder = folder;
    saving.keep_last = 0;
    saving.background = scenario.background;
    checkpointer_ = std::make_unique<Checkpointer>(saving, writer_, group_);
    pieces.checkpointer = checkpointer_.get();
  }

  absl::Status Fit(const std::string& from = "") {
    Trainer<TensorBatch> trainer(pieces, options);
    if (!from.empty()) {
      const auto checkpoint = LoadPth(from);
      if (!checkpoint.ok()) return checkpoint.status();
      if (const absl::Status status = trainer.Resume(*checkpoint); !status.ok()) return status;
      first_steps = trainer.step();
    }
    return trainer.Fit();
  }

  Trainer<TensorBatch>::Pieces pieces;
  TrainerOptions options;
  Seen seen;
  std::vector<int64_t> taken;  // samples trained on, in order
  size_t first_steps = 0;
  torch::nn::Sequential net_{nullptr};

  /// The same end as a run that did not stop.
  void ExpectEndOf(const SmallRun& whole) const {
    for (size_t i = 0; i < net_->parameters().size(); ++i) {
      EXPECT_TRUE(net_->parameters()[i].equal(whole.net_->parameters()[i])) << "parameter " << i;
    }
    const size_t n = seen.losses.size(), all = whole.seen.losses.size();
    ASSERT_LE(n, all);
    for (size_t i = 0; i < n; ++i) {
      EXPECT_EQ(seen.losses[i], whole.seen.losses[all - n + i]) << i;
      EXPECT_EQ(seen.rates[i], whole.seen.rates[all - n + i]) << i;
      EXPECT_EQ(seen.steps[i], whole.seen.steps[all - n + i]) << i;
    }
    if (ddp_->bucketed_reducer() != nullptr) {
      EXPECT_EQ(ddp_->bucketed_reducer()->bucket_names(), whole.ddp_->bucketed_reducer()->bucket_names());
    }
    for (const auto& [epoch, metrics] : seen.metrics) EXPECT_EQ(metrics, whole.seen.metrics.at(epoch)) << epoch;
    ASSERT_LE(taken.size(), whole.taken.size());
    EXPECT_TRUE(std::equal(taken.rbegin(), taken.rend(), whole.taken.rbegin()));
  }

 private:
  StepOutput Step(TensorBatch& batch) {
    const at::Tensor error = (ddp_->forward(batch.data).squeeze(1) - batch.data.sum(1)).square();
    return {error.mean(), batch.target.size(0), {{"ones", at::ones_like(error).sum()}}};
  }

  const Scenario scenario_;
  const ProcessGroupPtr group_;
  std::unique_ptr<DistributedDataParallel<torch::nn::SequentialImpl>> ddp_;
  std::optional<DdpStrategy> strategy_;
  ShardedReducer* sharded_ = nullptr;
  std::unique_ptr<torch::optim::Optimizer> optimizer_;
  std::unique_ptr<torch::optim::LRScheduler> scheduler_;
  std::unique_ptr<GradScaler> scaler_;
  std::unique_ptr<EarlyStopping> stopping_;
  std::unique_ptr<TensorLoader> train_, validation_;
  DrawnBatches drawn_;
  PthWriter writer_;
  std::unique_ptr<Checkpointer> checkpointer_;
};

std::vector<Scenario> Scenarios() {
  Scenario plain{"plain"};
  Scenario amp{"amp", true, true};
  amp.cosine = true;
  Scenario accumulation{"accumulation"};
  accumulation.accumulate = 3;
  accumulation.scaler = true;
  Scenario hook{"hook"};
  hook.hook = true;
  hook.background = false;
  Scenario drawn{"drawn"};
  drawn.drawn = true;
  Scenario fixed{"static graph"};
  fixed.static_graph = true;
  fixed.prefetch = 0;
  Scenario sharded{"sharded"};
  sharded.sharded = true;
  sharded.accumulate = 2;
  Scenario master = sharded;
  master.name = "sharded master weights";
  master.master = true;
  Scenario join{"join"};  // some ranks have a batch more
  join.join = true;
  join.samples = 13 * GetWorldSize(World()) - 1;
  join.batch_size = 4;
  return {plain, amp, accumulation, hook, drawn, fixed, sharded, master, join};
}

TEST(Resume, FromAnyStepEqualsARunThatDidNotStop) {
  for (const Scenario& scenario : Scenarios()) {
    SCOPED_TRACE(scenario.name);
    const std::string folder = Folder();
    SmallRun whole(scenario, "");
    ASSERT_TRUE(whole.Fit().ok());
    SmallRun saving(scenario, folder);
    saving.options.run.checkpoints.steps = 1;
    const absl::Status saved = saving.Fit();
    ASSERT_TRUE(saved.ok()) << saved;
    saving.ExpectEndOf(whole);  // saving changes nothing
    Barrier(World());
    size_t files = 0;
    for (size_t step = 1; step <= whole.seen.losses.size(); ++step) {
      if (!fs::exists(folder + "/step-" + std::to_string(step) + ".pth")) continue;
      ++files;
      SCOPED_TRACE(step);
      SmallRun rest(scenario, "");
      const absl::Status status = rest.Fit(folder + "/step-" + std::to_string(step) + ".pth");
      ASSERT_TRUE(status.ok()) << status;
      rest.ExpectEndOf(whole);
      EXPECT_EQ(rest.seen.losses.size(), whole.seen.losses.size() - step);
    }
    const size_t all = whole.seen.losses.size();
    EXPECT_GE(files, scenario.join && GetWorldSize(World()) > 1 ? all / 2 : all);
  }
}

TEST(Resume, ARunThatMaxStepsEndedGoesOnAsIfItHadNot) {
  for (const Scenario& scenario : {Scenarios()[0], Scenarios()[2]}) {
    SCOPED_TRACE(scenario.name);
    const std::string folder = Folder();
    SmallRun whole(scenario, "");
    whole.options.limits.validate_every_steps = 3;
    ASSERT_TRUE(whole.Fit().ok());
    const size_t end = whole.seen.losses.size() / 2;
    SmallRun limited(scenario, folder);
    limited.options.limits.validate_every_steps = 3;
    limited.options.limits.max_steps = end;
    ASSERT_TRUE(limited.Fit().ok());
    EXPECT_EQ(limited.seen.losses.size(), end);
    Barrier(World());
    SmallRun rest(scenario, "");
    rest.options.limits.validate_every_steps = 3;
    const absl::Status status = rest.Fit(folder + "/step-" + std::to_string(end) + ".pth");
    ASSERT_TRUE(status.ok()) << status;
    rest.ExpectEndOf(whole);
    EXPECT_EQ(rest.seen.losses.size(), whole.seen.losses.size() - end);
  }
}

/// Sends a signal to one rank's own process before the n-th batch.
std::function<StepOutput(TensorBatch&)> Signalling(SmallRun& run, int at, int rank, int signal) {
  return [inner = run.pieces.train_step, at, rank, signal, n = 0](TensorBatch& batch) mutable {
    if (++n == at && GetRank(World()) == rank) raise(signal);
    return inner(batch);
  };
}

TEST(Resume, ASignalToOneRankSavesOnAllAfterTheSameBatchAlsoInsideAStep) {
  Scenario scenario = Scenarios()[2];  // steps of three batches
  SmallRun whole(scenario, "");
  ASSERT_TRUE(whole.Fit().ok());
  for (int at = 1; at <= 5; ++at) {
    SCOPED_TRACE(at);
    const std::string folder = Folder();
    SmallRun first(scenario, folder);
    const StopSignals signals;
    first.pieces.signals = &signals;
    first.options.run.stop_exit_code = 76;
    first.pieces.train_step = Signalling(first, at, GetWorldSize(World()) - 1, at % 2 == 0 ? SIGTERM : SIGUSR1);
    const absl::Status stopped = first.Fit();
    EXPECT_EQ(ExitCodeOf(stopped), 76) << stopped;
    EXPECT_NE(std::string(stopped.message()).find("to be resumed"), std::string::npos) << stopped;
    Barrier(World());
    const auto latest = Checkpointer::Latest(folder);
    ASSERT_TRUE(latest.ok()) << latest.status();
    SmallRun rest(scenario, "");
    const absl::Status status = rest.Fit(*latest);
    ASSERT_TRUE(status.ok()) << status;
    rest.ExpectEndOf(whole);
    EXPECT_EQ(first.taken.size() + rest.taken.size(), whole.taken.size());
    Barrier(World());
  }
}

TEST(Resume, ASignalWithoutACheckpointerStopsAndSaysThatNothingIsSaved) {
  SmallRun run(Scenarios()[0], "");
  const StopSignals signals;
  run.pieces.signals = &signals;
  run.pieces.train_step = Signalling(run, 1, 0, SIGINT);
  const absl::Status stopped = run.Fit();
  EXPECT_EQ(ExitCodeOf(stopped), 75);
  EXPECT_NE(std::string(stopped.message()).find("there is no checkpoint"), std::string::npos) << stopped;
  EXPECT_LE(run.seen.losses.size(), 2);
}

/// The checkpoint of a run of all ranks that was stopped before its batch `at`, and, if asked for, what it trained on.
std::string StoppedRun(const Scenario& scenario, int at, std::vector<int64_t>* taken = nullptr) {
  const std::string folder = Folder();
  SmallRun run(scenario, folder);
  const StopSignals signals;
  run.pieces.signals = &signals;
  run.pieces.train_step = Signalling(run, at, 0, SIGTERM);
  EXPECT_TRUE(ExitCodeOf(run.Fit()));
  if (taken != nullptr) *taken = run.taken;
  Barrier(World());
  return *Checkpointer::Latest(folder);
}

/// The first ranks of the world; null for a world of one.
std::optional<ProcessGroupPtr> FirstRanks(int n) {
  if (GetRank(World()) >= n) return std::nullopt;
  std::vector<int> ranks;
  for (int i = 0; i < n; ++i) ranks.push_back(i);
  return n == 1 ? ProcessGroupPtr() : n == GetWorldSize(World()) ? World() : NewSubGroup(World(), ranks).value();
}

/// All samples that the ranks have trained on.
std::multiset<int64_t> All(const std::vector<int64_t>& mine) {
  std::string text;
  for (int64_t i : mine) text += std::to_string(i) + " ";
  std::multiset<int64_t> all;
  for (const auto& of_rank : AllGatherString(text, World())) {
    std::istringstream numbers(of_rank);
    for (int64_t i; numbers >> i;) all.insert(i);
  }
  return all;
}

TEST(Resume, OtherWorldsSeeTheRestOfTheEpochOnce) {
  const int world = GetWorldSize(World());
  if (world < 4) GTEST_SKIP() << "for 4 ranks";
  Scenario scenario = Scenarios()[0];
  scenario.epochs = 1;
  scenario.samples = 48;
  scenario.batch_size = 2;
  // In turn, with how many batches each world takes before it stops.
  for (const std::vector<std::pair<int, int>>& worlds :
       {std::vector<std::pair<int, int>>{{4, 2}, {2, 100}}, {{1, 5}, {4, 100}}, {{2, 3}, {4, 2}, {1, 3}, {3, 100}}}) {
    const std::string folder = Folder();
    std::vector<int64_t> taken;
    std::string from;
    for (const auto& [ranks, batches] : worlds) {
      SCOPED_TRACE(ranks);
      if (const auto group = FirstRanks(ranks)) {
        SmallRun run(scenario, folder, *group);
        const StopSignals signals;
        run.pieces.signals = &signals;
        run.pieces.train_step = Signalling(run, batches, 0, SIGTERM);
        const absl::Status status = run.Fit(from);
        EXPECT_TRUE(status.ok() || ExitCodeOf(status)) << status;
        taken.insert(taken.end(), run.taken.begin(), run.taken.end());
        if (status.ok()) {
          const double mean = run.seen.metrics.at(1).at("train_ones");
          EXPECT_EQ(mean, 1);  // over the samples of all worlds
        }
      }
      Barrier(World());
      from = *Checkpointer::Latest(folder);
    }
    const auto all = All(taken);
    EXPECT_EQ(all.size(), 48) << "none to pad or drop";
    for (int64_t i = 0; i < 48; ++i) EXPECT_EQ(all.count(i), 1) << i;
  }
}

TEST(Resume, AnotherWorldFinishesAnUnfinishedStepWithAllItsGradients) {
  const int world = GetWorldSize(World());
  if (world < 4) GTEST_SKIP() << "for 4 ranks";
  Scenario scenario = Scenarios()[0];
  scenario.epochs = 1;
  scenario.samples = 24;
  scenario.batch_size = 2;
  scenario.accumulate = 3;
  for (const bool weighted : {false, true}) {
    const std::string folder = Folder();
    const auto two = FirstRanks(2);
    double before = 0, after = 0;
    if (two) {
      SmallRun first(scenario, folder, *two);
      first.options.gradients.weight_by_samples = weighted;
      const StopSignals signals;
      first.pieces.signals = &signals;
      first.pieces.train_step = Signalling(first, 1, 0, SIGTERM);  // is answered after the second batch
      ASSERT_TRUE(ExitCodeOf(first.Fit()));
      EXPECT_EQ(first.taken.size(), 4);
      for (const auto& p : first.net_->parameters()) before += p.grad().sum().item<double>() / (weighted ? 1 : 2);
    }
    Barrier(World());
    SmallRun rest(scenario, "", World());
    rest.options.gradients.weight_by_samples = weighted;
    rest.pieces.train_step = [&, inner = rest.pieces.train_step, n = 0](TensorBatch& batch) mutable {
      if (n++ == 0) {
        for (const auto& p : rest.net_->parameters()) {
          if (p.grad().defined()) after += p.grad().sum().item<double>() / (weighted ? 1 : world);
        }
      }
      return inner(batch);
    };
    const absl::Status status = rest.Fit(*Checkpointer::Latest(folder));
    ASSERT_TRUE(status.ok()) << status;
    at::Tensor sums = at::tensor({before, after}, at::kDouble);
    AllReduce(sums, World());
    EXPECT_NEAR(sums[0].item<double>(), sums[1].item<double>(), 1e-5);
    EXPECT_EQ(rest.seen.metrics.at(1).at("train_ones"), 1);
    EXPECT_EQ(rest.seen.steps.front(), (std::pair<size_t, size_t>{1, 1}));
  }
}

TEST(Resume, ASourceThatCannotTellWhatIsLeftBeginsItsEpochAgain) {
  const int world = GetWorldSize(World());
  if (world < 2) GTEST_SKIP() << "for 2 ranks";
  Scenario scenario = Scenarios()[4];
  const std::string folder = Folder();
  if (const auto one = FirstRanks(1)) {
    SmallRun first(scenario, folder, *one);
    const StopSignals signals;
    first.pieces.signals = &signals;
    first.pieces.train_step = Signalling(first, 7, 0, SIGTERM);
    ASSERT_TRUE(ExitCodeOf(first.Fit()));
  }
  Barrier(World());
  SmallRun rest(scenario, "");
  const absl::Status status = rest.Fit(*Checkpointer::Latest(folder));
  ASSERT_TRUE(status.ok()) << status;
  EXPECT_EQ(rest.seen.steps.front(), (std::pair<size_t, size_t>{2, 1}));
  EXPECT_EQ(rest.seen.losses.size(), 5);
}

TEST(Resume, OtherBatchSizesShareOutTheRest) {
  Scenario scenario = Scenarios()[0];
  scenario.epochs = 1;
  scenario.samples = 48;
  scenario.batch_size = 2;
  std::vector<int64_t> taken;
  const std::string checkpoint = StoppedRun(scenario, 2, &taken);
  scenario.batch_size = 1;
  SmallRun rest(scenario, "");
  const absl::Status status = rest.Fit(checkpoint);
  ASSERT_TRUE(status.ok()) << status;
  taken.insert(taken.end(), rest.taken.begin(), rest.taken.end());
  const auto all = All(taken);
  for (int64_t i = 0; i < 48; ++i) EXPECT_EQ(all.count(i), 1) << i;
}

TEST(Resume, AnotherNumberOfBatchesAStepTakesUpAnUnfinishedOne) {
  Scenario scenario = Scenarios()[0];
  scenario.epochs = 1;
  scenario.accumulate = 4;
  const std::string checkpoint = StoppedRun(scenario, 2);  // is answered after the third batch
  for (size_t accumulate : {1, 2, 4, 5}) {
    scenario.accumulate = accumulate;
    SmallRun rest(scenario, "");
    const absl::Status status = rest.Fit(checkpoint);
    ASSERT_TRUE(status.ok()) << status;
    EXPECT_EQ(rest.seen.steps.front(), (std::pair<size_t, size_t>{1, 1}));
    EXPECT_EQ(rest.seen.metrics.at(1).at("train_ones"), 1);
  }
}

TEST(Resume, AnUnfinishedStepWithoutABatchToFinishItIsDropped) {
  Scenario scenario = Scenarios()[0];
  scenario.epochs = 1;
  scenario.samples = 13 * GetWorldSize(World());
  scenario.batch_size = 4;
  scenario.accumulate = 3;
  const std::string checkpoint = StoppedRun(scenario, 1);
  scenario.batch_size = 7;
  scenario.drop_last = true;
  SmallRun rest(scenario, "");
  const absl::Status status = rest.Fit(checkpoint);
  EXPECT_TRUE(status.ok()) << status;
  EXPECT_EQ(rest.seen.losses.size(), 0);
}

TEST(GradientWindow, KeepsDenseAndSparseGradients) {
  GradientWindow window;
  window.steps = 7;
  window.batches = 2;
  window.gradients["dense"] = at::ones({2, 3});
  window.gradients["sparse"] =
      at::sparse_coo_tensor(at::tensor({1, 1, 3}, at::kLong).view({1, 3}), at::ones({3, 2}), {5, 2});
  const std::string path = Folder() + "/window.pth";
  if (GetRank(World()) == 0) {
    ASSERT_TRUE(SavePth(window.ToValue(), path).ok());
  }
  Barrier(World());
  const auto read = GradientWindow::FromValue(*LoadPth(path));
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(read->steps, 7);
  EXPECT_TRUE(read->gradients.at("dense").equal(window.gradients["dense"]));
  EXPECT_TRUE(read->gradients.at("sparse").is_sparse());
  EXPECT_TRUE(read->gradients.at("sparse").to_dense().equal(window.gradients["sparse"].to_dense()));
}

TEST(Resume, RefusesDataWithFewerBatches) {
  Scenario scenario = Scenarios()[0];
  const std::string folder = Folder();
  SmallRun first(scenario, folder);
  first.options.run.checkpoints.steps = 1;
  ASSERT_TRUE(first.Fit().ok());
  Barrier(World());
  scenario.samples = 4 * GetWorldSize(World());
  SmallRun rest(scenario, "");
  const absl::Status status = rest.Fit(folder + "/step-3.pth");
  EXPECT_NE(std::string(status.message()).find("fewer batches than the 3"), std::string::npos) << status;
}

TEST(Resume, RefusesWhatIsNoRunOfThisVersion) {
  Scenario scenario = Scenarios()[0];
  const std::string folder = Folder();
  SmallRun first(scenario, folder);
  first.options.run.checkpoints.steps = 1;
  ASSERT_TRUE(first.Fit().ok());
  Barrier(World());
  const Value whole = *LoadPth(folder + "/step-3.pth");
  const auto expect_refused = [&](const std::string& want, const std::function<void(Value & run)>& damage) {
    Value copy((ValueDict()));
    for (const auto& [key, value] : whole.dict()->items) copy.set(*key.string(), value);
    Value run = *whole.find("run");
    damage(run);
    copy.set("run", run);
    SmallRun rest(scenario, "");
    Trainer<TensorBatch> trainer(rest.pieces, rest.options);
    const absl::Status status = trainer.Resume(copy);
    EXPECT_NE(std::string(status.message()).find(want), std::string::npos) << want << ": " << status;
  };
  for (const char* key : {"generators", "generators_at_start", "generators_before_batch"}) {
    for (const Value& bad : {Value(), Value("x"), Value(at::zeros({7}, at::kByte))}) {
      expect_refused("generator", [&](Value& run) {
        Value progress = *run.find("progress"), ranks = *progress.find("ranks");
        for (Value& rank : std::get<ValueList>(ranks.get())) {
          Value state((ValueDict()));
          state.set("cpu", bad);
          rank.set(key, bad.tensor() == nullptr ? bad : state);
        }
        progress.set("ranks", ranks);
        run.set("progress", progress);
      });
    }
  }
  expect_refused("another version", [](Value& run) { run.set("format", 99); });
  expect_refused("another version", [](Value& run) { run.set("format", "1"); });
  expect_refused("no 'progress'", [](Value& run) {
    run = Value(ValueDict());
    run.set("format", 1);
  });
  for (const char* key : {"epoch", "step", "total_steps", "ranks", "earlier"}) {
    for (const Value& bad : {Value(), Value("x"), Value(-1), Value(std::nan(""))}) {
      expect_refused(key, [&](Value& run) {
        Value progress = *run.find("progress");
        progress.set(key, bad);
        run.set("progress", progress);
      });
    }
  }
  for (const char* key : {"batches", "samples", "sums", "window"}) {
    expect_refused(key, [&](Value& run) {
      Value progress = *run.find("progress"), ranks = *progress.find("ranks");
      for (Value& rank : std::get<ValueList>(ranks.get())) rank.set(key, "bad");
      progress.set("ranks", ranks);
      run.set("progress", progress);
    });
  }
}

TEST(Resume, AnIntervalInMinutesIsOneSaveEach) {
  const std::string folder = Folder();
  Scenario scenario = Scenarios()[0];
  scenario.background = false;
  SmallRun run(scenario, folder);
  run.options.run.checkpoints = {0, 0, 0.2 / 60};
  int slow = 0;
  run.pieces.train_step = [&, inner = run.pieces.train_step](TensorBatch& batch) {
    if (++slow == 3) usleep(250'000);  // the only batch that takes long
    return inner(batch);
  };
  ASSERT_TRUE(run.Fit().ok());
  Barrier(World());
  size_t files = 0;
  for (const auto& entry : fs::directory_iterator(folder)) files += entry.path().extension() == ".pth" ? 1 : 0;
  EXPECT_GE(files, 2);  // and the end
  EXPECT_LE(files, 3);  // on a machine that is slow by itself
}

TEST(Resume, ARunThatHadStoppedEarlyStaysStoppedUnlessThereIsMorePatience) {
  Scenario scenario = Scenarios()[0];
  scenario.epochs = 9;
  const std::string folder = Folder();
  const auto with_patience = [&](SmallRun& run, int patience) {
    EarlyStoppingOptions options;
    options.monitor = "val_loss";
    options.min_delta = 1000;  // only the first is better
    options.patience = patience;
    auto stop = std::make_unique<EarlyStopping>(options);
    run.pieces.state.stop = stop.get();
    return stop;
  };
  SmallRun first(scenario, folder);
  const auto one = with_patience(first, 2);
  ASSERT_TRUE(first.Fit().ok());
  EXPECT_EQ(first.seen.metrics.size(), 3);
  Barrier(World());
  SmallRun same(scenario, ""), more(scenario, "");
  const auto two = with_patience(same, 2), four = with_patience(more, 4);
  ASSERT_TRUE(same.Fit(*Checkpointer::Latest(folder)).ok());
  EXPECT_EQ(same.seen.metrics.size(), 0);
  ASSERT_TRUE(more.Fit(*Checkpointer::Latest(folder)).ok());
  EXPECT_EQ(more.seen.metrics.size(), 2);
}

TEST(Resume, SavesByMinutesAndAtTheEnd) {
  const std::string folder = Folder();
  Scenario scenario = Scenarios()[0];
  scenario.background = false;
  SmallRun run(scenario, folder);
  run.options.run.checkpoints = {0, 0, 1e-9};  // always due, but known one step later
  ASSERT_TRUE(run.Fit().ok());
  Barrier(World());
  for (size_t step = 2; step <= run.seen.losses.size() / 2;
       step += 2) {  // an answer that was asked for before counts not
    EXPECT_TRUE(fs::exists(folder + "/step-" + std::to_string(step) + ".pth")) << step;
  }
  EXPECT_FALSE(fs::exists(folder + "/step-1.pth"));
  EXPECT_TRUE(fs::exists(folder + "/step-" + std::to_string(run.seen.losses.size()) + ".pth"));
  const std::string only_last = Folder();
  SmallRun last(scenario, only_last);
  last.options.run.checkpoints = {0, 0, 0};
  ASSERT_TRUE(last.Fit().ok());
  Barrier(World());
  size_t files = 0;
  for (const auto& entry : fs::directory_iterator(only_last)) files += entry.path().extension() == ".pth" ? 1 : 0;
  EXPECT_EQ(files, 1);
}

}  // namespace
}  // namespace lockstep
