// The trainer with loss scalers, autocast, clipping and master weights; numbers that are not finite.

#include <ATen/autocast_mode.h>
#include <unistd.h>

#include <cmath>
#include <cstdlib>
#include <fstream>
#include <limits>
#include <nlohmann/json.hpp>
#include <sstream>

#include "lockstep/amp/grad_scaler.h"
#include "lockstep/amp/master_weight_optimizer.h"
#include "lockstep/amp/scaler_sync.h"
#include "lockstep/amp/static_scaler.h"
#include "lockstep/comm/texts.h"
#include "lockstep/trainer/finite_check.h"
#include "lockstep/trainer/metrics_log.h"
#include "lockstep/trainer/progress.h"
#include "lockstep/trainer/training_state.h"
#include "training_run.h"

namespace lockstep {
namespace {

constexpr double kInf = std::numeric_limits<double>::infinity();

GradScaler MakeScaler(double scale = 1024) {
  GradScalerOptions options;
  options.init_scale = scale;
  options.group = Group();
  return GradScaler(options);
}

/// Multiplies the loss of the last rank by `factor` from call `first` to call `last`, counted from 1.
void Spoil(TrainingRun& run, int first, int last, double factor) {
  const auto step = run.pieces.eval_step;
  run.pieces.train_step = [=, calls = 0](at::Tensor& x) mutable {
    ++calls;
    StepOutput output = step(x);
    if (calls >= first && calls <= last && Rank() == World() - 1) output.loss = output.loss * factor;
    return output;
  };
}

std::string LastRank() { return World() > 1 ? "rank " + std::to_string(World() - 1) + ": " : ""; }

TEST(NotFinite, ALossWithoutAScalerIsAnErrorOnAllRanksThatNamesStepAndRank) {
  for (const size_t every : {0, 2, 50}) {
    TrainingRun s({4, 4, 4, 4, 4, 4});
    s.options.finite.every = every;
    Spoil(s, 3, 3, kInf);
    const absl::Status status = s.Fit();
    EXPECT_NE(status.message().find(LastRank() + "epoch 1, step 3: the loss is inf"), std::string::npos) << status;
    EXPECT_EQ(s.steps.losses.size(), every == 2 ? 3u : 6u) << "an observer isn't told of the step that is looked at";
  }
}

TEST(NotFinite, TwentySkippedStepsInARowNameTheFirstAndItsRank) {
  TrainingRun s(std::vector<int64_t>(40, 4));
  GradScaler scaler = MakeScaler();
  s.pieces.state.scaler = &scaler;
  Spoil(s, 3, 100, std::nan(""));
  const absl::Status status = s.Fit();
  EXPECT_NE(status.message().find(LastRank() + "epoch 1, step 3: the loss is nan"), std::string::npos) << status;
  EXPECT_NE(status.message().find("20 steps in a row were skipped"), std::string::npos) << status;
  EXPECT_EQ(s.steps.losses.size(), 21u);
  CheckScalersEqual(scaler, Group());
}

TEST(NotFinite, GradientsThatOverflowThoughLossesAreFinite) {
  TrainingRun s(std::vector<int64_t>(40, 4));
  GradScaler scaler = MakeScaler();
  s.pieces.state.scaler = &scaler;
  s.options.finite.max_skipped_steps = 3;
  s.layer->weight.register_hook([](const at::Tensor& grad) { return grad * kInf; });
  const absl::Status status = s.Fit();
  EXPECT_EQ(
      status.message(),
      "epoch 1, step 1: gradients are not finite though all losses are; 3 steps in a row were skipped, from epoch 1, "
      "step 1");
}

TEST(NotFinite, ANormThatOverflowsIsAnErrorWithoutAScaler) {
  TrainingRun s({4, 4, 4});
  s.options.gradients.max_grad_norm = 1;
  s.layer->weight.register_hook([](const at::Tensor& grad) { return at::full_like(grad, 1e200); });
  s.steps.looks = false;
  EXPECT_NE(s.Fit().message().find("epoch 1, step 1: the norm of the gradients is inf"), std::string::npos);
}

TEST(NotFinite, HalfLossesOfAWindowAreSummedInFloat) {
  TrainingRun s({4, 4, 4, 4});
  s.options.gradients.accumulate = 2;
  const auto step = s.pieces.eval_step;
  s.pieces.train_step = [&](at::Tensor& x) {
    StepOutput output = step(x);
    output.loss = (output.loss * 0 + 40000).to(at::kHalf);
    return output;
  };
  EXPECT_TRUE(s.Fit().ok());
  EXPECT_EQ(s.steps.losses, (std::vector<double>{40000, 40000}));
}

TEST(NotFinite, AnyNumberOfStepsMayBeSkippedWhenAskedFor) {
  TrainingRun s(std::vector<int64_t>(30, 4));
  GradScaler scaler = MakeScaler();
  s.pieces.state.scaler = &scaler;
  s.options.finite.max_skipped_steps = 0;
  Spoil(s, 1, 29, kInf);
  EXPECT_TRUE(s.Fit().ok());
  EXPECT_EQ(s.steps.metrics["skipped_steps"], 29);
}

TEST(NotFinite, TheCheckFindsTheFirstStepAndTheLowestRank) {
  StepNumbers check;
  check.Add(1, 1, "loss", at::ones({}));
  check.Add(1, 2, "loss", Rank() == 0 ? at::full({}, kInf) : at::ones({1}));
  check.Add(1, 3, "loss", at::full({}, std::nan("")));
  EXPECT_EQ(check.Check(Group()).message(),
            (World() > 1 ? "rank 0: " : "") + std::string("epoch 1, step 2: the loss is inf, not a finite number"));
  EXPECT_TRUE(check.Check(Group()).ok()) << "they are looked at once";
  check.Add(2, 1, "loss", Rank() == 0 ? at::Tensor() : at::ones({}));
  EXPECT_TRUE(check.Check(Group()).ok());
  EXPECT_TRUE(StepNumbers().Check(nullptr).ok());
}

TEST(Scaler, OneThatDecidesAloneIsRefusedWhereThereAreRanks) {
  TrainingRun s({4});
  GradScaler alone;
  s.pieces.state.scaler = &alone;
  EXPECT_EQ(s.Fit().ok(), World() == 1);
}

TEST(Scaler, AnySortGivesTheParametersOfNone) {
  for (const size_t accumulate : {1, 2}) {
    for (const bool clip : {false, true}) {
      GradScaler dynamic = MakeScaler();
      StaticScaler fixed(4096);
      const auto train = [&](LossScaler* scaler) {
        auto s = std::make_unique<TrainingRun>(std::vector<int64_t>{4, 4, 4, 4, 4});
        if (scaler != nullptr) s->pieces.state.scaler = scaler;
        s->options.gradients.accumulate = accumulate;
        if (clip) s->options.gradients.max_grad_norm = 0.1;
        const absl::Status status = s->Fit();
        EXPECT_TRUE(status.ok()) << status;
        return s;
      };
      const auto none = train(nullptr), with_dynamic = train(&dynamic), with_fixed = train(&fixed);
      EXPECT_TRUE(with_dynamic->layer->weight.equal(none->layer->weight));
      EXPECT_TRUE(with_fixed->layer->weight.equal(none->layer->weight));
      EXPECT_EQ(none->steps.metrics.count("loss_scale"), 0u);
      EXPECT_EQ(with_fixed->steps.metrics["loss_scale"], 4096);
      EXPECT_EQ(with_dynamic->steps.metrics["loss_scale"], 1024);
      EXPECT_EQ(with_dynamic->steps.metrics["skipped_steps"], 0);
    }
  }
}

TEST(Scaler, AnOverflowInOneBatchOfAWindowSkipsTheWindow) {
  TrainingRun s({4, 4, 4, 4, 4, 4}), reference({4, 4, 4, 4});
  GradScaler scaler = MakeScaler();
  s.pieces.state.scaler = &scaler;
  s.options.gradients.accumulate = reference.options.gradients.accumulate = 2;
  Spoil(s, 5, 5, kInf);  // the first of the third window
  ASSERT_TRUE(s.Fit().ok());
  ASSERT_TRUE(reference.Fit().ok());
  EXPECT_TRUE(s.layer->weight.equal(reference.layer->weight));
  EXPECT_EQ(s.steps.metrics["skipped_steps"], 1);
  EXPECT_EQ(s.steps.metrics["loss_scale"], 512);
  EXPECT_EQ(s.steps.metrics["train_loss"], reference.steps.metrics["train_loss"]) << "of steps that were taken";
}

TEST(Scaler, AnOverflowOfARankThatGoesOnAloneSkipsTheStepOnAll) {
  TrainingRun s(std::vector<int64_t>(2 + Rank(), 4));
  GradScaler scaler = MakeScaler();
  s.pieces.state.scaler = &scaler;
  s.pieces.joinables = {s.ddp.get()};
  s.options.gradients.check_parameters_every = 1;
  Spoil(s, 1 + World(), 100, kInf);  // its last batch
  ASSERT_TRUE(s.Fit().ok());
  EXPECT_EQ(s.steps.metrics["skipped_steps"], 1);
}

TEST(Scaler, TheDebugCheckSeesScalesThatDriftApart) {
  if (World() == 1) return;
  TrainingRun s({4, 4, 4, 4});
  GradScaler scaler = MakeScaler();
  s.pieces.state.scaler = &scaler;
  s.options.gradients.check_parameters_every = 2;
  if (Rank() == 1) scaler.Update(2048.);
  try {
    (void)s.Fit();
    ADD_FAILURE() << "no error";
  } catch (const std::exception& e) {
    EXPECT_NE(std::string(e.what()).find("rank 0 has scale 1024, rank 1 has scale 2048"), std::string::npos)
        << e.what();
  }
}

/// What the rows and lines of a run say.
std::string Printed(TrainingRun& s) {
  const std::string path = std::string(std::getenv("TEST_TMPDIR")) + "/printed." + std::to_string(getpid());
  std::FILE* const file = std::fopen(path.c_str(), "w");
  ProgressPrinter rows(Rank(), World(), file);
  LinePrinter lines(Rank(), 1, file);
  s.pieces.observers.push_back(&rows);
  s.pieces.observers.push_back(&lines);
  EXPECT_TRUE(s.Fit().ok());
  std::fclose(file);
  std::ostringstream text;
  text << std::ifstream(path).rdbuf();
  return text.str();
}

TEST(Scaler, RowsMetricsAndStepsTellOfIt) {
  TrainingRun s({4, 4, 4, 4});
  GradScaler scaler = MakeScaler();
  s.pieces.state.scaler = &scaler;
  s.options.gradients.max_grad_norm = 1;
  Spoil(s, 2, 2, kInf);
  const std::string folder =
      AllGatherString(std::string(std::getenv("TEST_TMPDIR")) + "/log." + std::to_string(getpid()), Group())[0];
  MetricsLog log(folder, 1);
  if (Rank() == 0) {
    EXPECT_EQ(std::system(("mkdir -p " + folder).c_str()), 0);
    EXPECT_TRUE(log.Open().ok());
    s.pieces.observers.push_back(&log);
  }
  const std::string text = Printed(s);
  Barrier(Group());
  EXPECT_EQ(text.find("scale 512, 1 skipped") != std::string::npos, Rank() == 0) << text;
  EXPECT_NE(text.find("step: 2, loss: " + std::string(Rank() == World() - 1 ? "inf" : "")), std::string::npos) << text;
  EXPECT_NE(text.find(", rank: " + std::to_string(Rank()) + ", skipped\n"), std::string::npos) << text;
  std::ifstream metrics(folder + "/metrics.jsonl"), steps(folder + "/steps.jsonl");
  std::string line;
  std::getline(metrics, line);
  auto json = nlohmann::json::parse(line);
  EXPECT_EQ(json["skipped_steps"], 1);
  EXPECT_EQ(json["loss_scale"], 512);
  for (int step = 1; step <= 4; ++step) {
    std::getline(steps, line);
    json = nlohmann::json::parse(line);
    EXPECT_EQ(json["skipped_steps"], step > 1 ? 1 : 0);
    EXPECT_EQ(json["loss_scale"], step > 1 ? 512 : 1024);
    EXPECT_EQ(json["grad_norm"].is_number(), step != 2);
  }
}

TEST(Autocast, IsTheSameInTrainingAndValidation) {
  TrainingRun s({4, 4});
  s.options.autocast = at::kBFloat16;
  std::vector<std::optional<at::ScalarType>> seen;
  const auto step = s.pieces.eval_step;
  s.pieces.train_step = s.pieces.eval_step = [&](at::Tensor& x) {
    seen.push_back(at::autocast::is_autocast_enabled(at::kCPU)
                       ? std::optional(at::autocast::get_autocast_dtype(at::kCPU))
                       : std::nullopt);
    return step(x);
  };
  ASSERT_TRUE(s.Fit().ok());
  EXPECT_EQ(seen, std::vector<std::optional<at::ScalarType>>(3, at::kBFloat16));
  EXPECT_FALSE(at::autocast::is_autocast_enabled(at::kCPU));
}

TEST(Clipping, ByValueAndByTheNormOfEachGroup) {
  const auto moved = [](auto&& set) {
    TrainingRun s({4});
    std::vector<torch::optim::OptimizerParamGroup> groups;
    groups.emplace_back(std::vector<at::Tensor>{s.layer->weight});
    groups.emplace_back(std::vector<at::Tensor>{s.layer->bias});
    s.optimizer = std::make_unique<torch::optim::SGD>(groups, torch::optim::SGDOptions(1.));
    s.pieces.state.optimizer = s.optimizer.get();
    const at::Tensor weight = s.layer->weight.detach().clone(), bias = s.layer->bias.detach().clone();
    set(s.options.gradients);
    EXPECT_TRUE(s.Fit().ok());
    return std::pair{s.layer->weight.detach() - weight, s.layer->bias.detach() - bias};
  };
  const auto plain = moved([](auto&) {});
  const double limit = 0.01;
  ASSERT_GT(plain.first.abs().min().template item<double>(), limit);
  ASSERT_GT(plain.second.abs().item<double>(), limit);
  const auto by_value = moved([&](auto& o) { o.max_grad_value = limit; });
  EXPECT_TRUE(at::allclose(by_value.first, plain.first.sign() * limit));
  const auto whole = moved([&](auto& o) { o.max_grad_norm = limit; });
  EXPECT_NEAR(at::cat({whole.first.flatten(), whole.second}).norm().item<double>(), limit, 1e-5);
  const auto each = moved([&](auto& o) {
    o.max_grad_norm = limit;
    o.clip_each_group = true;
  });
  EXPECT_NEAR(each.first.norm().item<double>(), limit, 1e-5);
  EXPECT_NEAR(each.second.norm().item<double>(), limit, 1e-5);
  const auto largest = moved([&](auto& o) {
    o.max_grad_norm = limit;
    o.grad_norm_type = kInf;
  });
  EXPECT_NEAR(at::cat({largest.first.flatten(), largest.second}).abs().max().item<double>(), limit, 1e-5);
}

/// The layer in bfloat16, trained by float copies.
struct MasterRun : TrainingRun {
  explicit MasterRun(std::vector<int64_t> batches) : TrainingRun(std::move(batches)) {
    ddp.reset();
    layer->to(at::kBFloat16);
    ddp = std::make_unique<DistributedDataParallel<torch::nn::LinearImpl>>(layer, Group());
    master = std::make_unique<MasterWeightOptimizer<torch::optim::SGD>>(ddp->parameters(),
                                                                        torch::optim::SGDOptions(0.01).momentum(0.9));
    pieces.state.optimizer = master.get();
    pieces.state.scaler = &dynamic;
    pieces.strategy = &strategy.emplace(*ddp);
    pieces.eval_step = pieces.train_step = [this](at::Tensor& x) {
      const at::Tensor out = ddp->forward(x.to(at::kBFloat16)).to(at::kFloat);
      return StepOutput{(out - x.sum(1, true)).square().mean().to(at::kFloat), x.size(0)};
    };
    options.gradients.max_grad_norm = 1;
    options.gradients.check_parameters_every = 1;
  }
  GradScaler dynamic = MakeScaler();
  std::unique_ptr<MasterWeightOptimizer<torch::optim::SGD>> master;
};

TEST(MasterWeights, TrainClipSkipAndResumeBitForBit) {
  MasterRun whole({4, 4, 4, 4}), first({4, 4, 4, 4}), second({4, 4, 4, 4});
  for (MasterRun* s : {&whole, &first, &second}) s->options.epochs = 2;
  Spoil(whole, 2, 2, kInf);
  Spoil(first, 2, 2, kInf);
  const absl::Status status = whole.Fit();
  ASSERT_TRUE(status.ok()) << status;
  EXPECT_EQ(whole.dynamic.scale(), 512);
  first.options.epochs = 1;
  ASSERT_TRUE(first.Fit().ok());
  const auto saved = SaveTrainingState(first.pieces.state, 1);
  ASSERT_TRUE(saved.ok()) << saved.status();
  Trainer<at::Tensor> rest(second.pieces, second.options);
  const absl::Status resumed = rest.Resume(*saved);
  ASSERT_TRUE(resumed.ok()) << resumed;
  EXPECT_TRUE(second.master->copies()[0].equal(first.master->copies()[0]));
  EXPECT_FALSE(second.master->copies()[0].equal(second.layer->weight.to(at::kFloat))) << "finer than the model";
  ASSERT_TRUE(rest.Fit().ok());
  for (size_t i = 0; i < 2; ++i) EXPECT_TRUE(second.master->copies()[i].equal(whole.master->copies()[i]));
  EXPECT_TRUE(second.layer->weight.equal(whole.layer->weight));
  // A checkpoint without them: from the model's. One that doesn't fit: an error, and nothing is changed.
  Value plain((ValueDict()));
  for (const auto& [key, value] : saved->dict()->items) {
    if (*key.string() != "master_weights") plain.set(*key.string(), value);
  }
  ASSERT_TRUE(LoadTrainingState(plain, second.pieces.state).ok());
  EXPECT_TRUE(second.master->copies()[0].equal(second.layer->weight.to(at::kFloat)));
  second.dynamic.Update(2.);
  plain.set("master_weights", ValueList{Value(at::ones({7})), Value(at::ones({1}))});
  EXPECT_NE(LoadTrainingState(plain, second.pieces.state).status().message().find("'master_weights': number 0"),
            std::string::npos);
  EXPECT_EQ(second.dynamic.scale(), 2) << "nothing was changed";
}

}  // namespace
}  // namespace lockstep
