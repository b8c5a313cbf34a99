#include "lockstep/data/limited_source.h"

#include <ATen/Functions.h>
#include <gtest/gtest.h>

#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

#include "lockstep/optim/reduce_on_plateau.h"
#include "lockstep/trainer/run_limits.h"
#include "lockstep/trainer/trainer.h"
#include "training_run.h"

namespace lockstep {
namespace {

/// Says what it was told, and asks to stop where it is set to.
struct Diary : TrainObserver {
  void OnStepEnd(StepInfo& info) override {
    ++steps;
    if (steps == ask_after_step && Rank() == World() - 1) AskToStop("enough");
    sums = info.sums->samples();
  }
  void OnValidationStart() override { ++validations; }
  void OnValidated(const EpochInfo& info) override {
    validated.push_back(info.metrics.count("val_loss") > 0);
    places.push_back(info.step);
  }
  void OnEpochEnd(const EpochInfo& info) override { ++epochs; }
  void OnStopped(const std::string& why) override { reason = why; }
  int steps = 0, epochs = 0, validations = 0, ask_after_step = 0;
  int64_t sums = 0;
  std::vector<bool> validated;
  std::vector<size_t> places;
  std::string reason;
};

/// Stops at a validation of the given number.
struct StopAt : NeverStop {
  explicit StopAt(int n) : at(n) {}
  absl::StatusOr<Verdict> Check(const std::map<std::string, double>&) override { return Verdict{true, ++seen >= at}; }
  std::string reason() const override { return seen >= at ? "seen enough" : ""; }
  const int at;
  int seen = 0;
};

struct LimitedRun : TrainingRun {
  LimitedRun() : TrainingRun({2, 2, 2, 2, 2}) {
    options.epochs = 3;
    pieces.observers.push_back(&diary);
  }
  Diary diary;
};

TEST(RunLimits, MaxStepsEndsInsideAnEpochAndValidates) {
  LimitedRun run;
  run.options.limits.max_steps = 7;
  ASSERT_TRUE(run.Fit().ok());
  EXPECT_EQ(run.diary.steps, 7);
  EXPECT_EQ(run.diary.epochs, 2);
  EXPECT_EQ(run.diary.validated, (std::vector<bool>{true, true}));
  EXPECT_EQ(run.diary.reason, "");
}

TEST(RunLimits, MaxStepsMayFallOnAnEpochsEnd) {
  LimitedRun run;
  run.options.limits.max_steps = 10;
  ASSERT_TRUE(run.Fit().ok());
  EXPECT_EQ(run.diary.steps, 10);
  EXPECT_EQ(run.diary.epochs, 2);
}

TEST(RunLimits, MaxMinutesEndsTheRunOnAllRanks) {
  LimitedRun run;
  run.options.epochs = 1'000'000;
  run.options.limits.max_minutes = 1e-9;
  ASSERT_TRUE(run.Fit().ok());
  EXPECT_GE(run.diary.steps, 1);
  EXPECT_LE(run.diary.steps, 5);
  EXPECT_NE(run.diary.reason, "");
}

TEST(RunLimits, AnObserverOfAnyRankMayAskForTheEnd) {
  LimitedRun run;
  run.diary.ask_after_step = 2;
  ASSERT_TRUE(run.Fit().ok());
  EXPECT_EQ(run.diary.steps, 5);  // the ranks talk at the validation
  EXPECT_EQ(run.diary.reason, Rank() == World() - 1 ? "enough" : "another rank wished it");

  LimitedRun soon;
  soon.options.limits.max_minutes = 1e9;
  soon.diary.ask_after_step = 2;
  ASSERT_TRUE(soon.Fit().ok());
  EXPECT_EQ(soon.diary.steps, 3);  // a batch later
  EXPECT_EQ(soon.diary.epochs, 1);
}

TEST(RunLimits, BatchesAreLimitedPerKind) {
  LimitedRun run;
  int evaluated = 0;
  run.pieces.eval_step = [&, inner = run.pieces.train_step](at::Tensor& x) {
    ++evaluated;
    return inner(x);
  };
  Batches test({2, 2, 2, 2}), validation({2, 2, 2});
  run.pieces.validation = &validation;
  run.options.epochs = 2;
  run.options.limits.train_batches = 3;
  run.options.limits.validation_batches = 2;
  run.options.limits.test_batches = 1;
  Trainer<at::Tensor> trainer(run.pieces, run.options);
  ASSERT_TRUE(trainer.Fit().ok());
  EXPECT_EQ(run.diary.steps, 6);
  EXPECT_EQ(run.steps.planned, 3u);
  EXPECT_EQ(evaluated, 4);
  ASSERT_TRUE(trainer.Test(test).ok());
  EXPECT_EQ(evaluated, 5);
  EXPECT_EQ(trainer.Validate()->count("val_loss"), 1u);
  EXPECT_EQ(evaluated, 7);
}

TEST(RunLimits, PredictGivesEachBatchsOutputWithoutGradients) {
  LimitedRun run;
  Trainer<at::Tensor> trainer(run.pieces, run.options);
  Batches data({3, 1});
  const auto outputs = trainer.Predict<at::Tensor>(data, [&](at::Tensor& x) { return run.layer->forward(x); });
  ASSERT_EQ(outputs.size(), 2u);
  EXPECT_EQ(outputs[0].size(0), 3);
  EXPECT_FALSE(outputs[0].requires_grad());
  EXPECT_FALSE(run.ddp->is_training());
}

TEST(RunLimits, ValidatesInsideEpochsAndMayStopThere) {
  LimitedRun run;
  run.options.limits.validate_every_steps = 2;
  run.options.epochs = 1;
  ASSERT_TRUE(run.Fit().ok());
  EXPECT_EQ(run.diary.places, (std::vector<size_t>{2, 4, 0}));
  EXPECT_TRUE(run.ddp->is_training() || run.diary.steps == 5);

  LimitedRun stopped;
  StopAt stop(2);
  stopped.pieces.state.stop = &stop;
  stopped.options.limits.validate_every_steps = 2;
  ASSERT_TRUE(stopped.Fit().ok());
  EXPECT_EQ(stopped.diary.places, (std::vector<size_t>{2, 4}));
  EXPECT_EQ(stopped.diary.steps, 4);
  EXPECT_EQ(stopped.diary.epochs, 1);
  EXPECT_EQ(stopped.diary.reason, "seen enough");
}

TEST(RunLimits, AnEndWhereItWasJustValidatedIsNotValidatedAgain) {
  LimitedRun run;
  run.options.limits.validate_every_steps = 2;
  run.options.limits.max_steps = 4;
  ASSERT_TRUE(run.Fit().ok());
  EXPECT_EQ(run.diary.places, (std::vector<size_t>{2, 4}));
  EXPECT_EQ(run.diary.epochs, 1);
  LimitedRun other;
  other.options.limits.max_steps = 3;
  ASSERT_TRUE(other.Fit().ok());
  EXPECT_EQ(other.diary.places, std::vector<size_t>{3});
}

TEST(RunLimits, AScheduleThatGoesByAMetricWaitsForAValidation) {
  LimitedRun run;
  ReduceOnPlateauOptions plateau;
  plateau.patience = 0;
  plateau.threshold = 1e9;  // nothing but the first is an improvement
  plateau.threshold_mode = ReduceOnPlateauOptions::ThresholdMode::kAbs;
  ReduceOnPlateau schedule(*run.optimizer, plateau);
  run.pieces.scheduler = &schedule;
  run.options.epochs = 6;
  run.options.limits.validate_every_epochs = 2;
  const absl::Status status = run.Fit();
  ASSERT_TRUE(status.ok()) << status;
  // The first of three validations is the best, the others reduce.
  EXPECT_NEAR(schedule.Rates()[0], 0.05 * 0.1 * 0.1, 1e-12);
}

TEST(RunLimits, AnErrorInAValidationEndsIt) {
  LimitedRun run;
  struct Ends : TrainObserver {
    void OnValidationEnd() override { ++ends; }
    int ends = 0;
  } ends;
  run.pieces.observers.push_back(&ends);
  run.pieces.eval_step = [](at::Tensor& x) -> StepOutput { throw std::runtime_error("a broken picture"); };
  EXPECT_THROW(run.Fit().IgnoreError(), std::runtime_error);
  EXPECT_EQ(ends.ends, 1);
}

TEST(RunLimits, ModuleTrainsOnAfterAValidationInsideAnEpoch) {
  LimitedRun run;
  std::vector<bool> training;
  run.pieces.train_step = [&, inner = run.pieces.train_step](at::Tensor& x) {
    training.push_back(run.ddp->is_training());
    return inner(x);
  };
  run.options.limits.validate_every_steps = 1;
  ASSERT_TRUE(run.Fit().ok());
  EXPECT_EQ(training, std::vector<bool>(15, true));
}

TEST(RunLimits, ValidationsInsideEpochsChangeNothingOfTheTraining) {
  LimitedRun plain, validated;
  validated.options.limits.validate_every_steps = 2;
  ASSERT_TRUE(plain.Fit().ok());
  ASSERT_TRUE(validated.Fit().ok());
  EXPECT_TRUE(plain.layer->weight.equal(validated.layer->weight));
}

TEST(RunLimits, EpochsBetweenValidationsHaveTrainingMetricsOnly) {
  LimitedRun run;
  run.options.limits.validate_every_epochs = 2;
  ASSERT_TRUE(run.Fit().ok());
  EXPECT_EQ(run.diary.validated, (std::vector<bool>{false, true, true}));
  LimitedRun last;
  last.options.limits.validate_every_epochs = 0;
  ASSERT_TRUE(last.Fit().ok());
  EXPECT_EQ(last.diary.validated, (std::vector<bool>{false, false, true}));
}

TEST(RunLimits, MinEpochsGoBeforeTheStopCriterion) {
  LimitedRun run;
  StopAt stop(1);
  run.pieces.state.stop = &stop;
  run.options.limits.min_epochs = 2;
  ASSERT_TRUE(run.Fit().ok());
  EXPECT_EQ(run.diary.epochs, 2);
}

TEST(RunLimits, ASanityValidationComesFirst) {
  LimitedRun run;
  run.options.limits.sanity_batches = 1;
  run.pieces.eval_step = [](at::Tensor& x) { return StepOutput{at::full({}, NAN, at::kDouble), x.size(0)}; };
  const absl::Status status = run.Fit();
  ASSERT_FALSE(status.ok());
  EXPECT_EQ(run.diary.steps, 0);
  EXPECT_NE(status.message().find("sanity_loss"), std::string::npos) << status;
}

TEST(RunLimits, AFastDevelopmentRunTriesEverythingOnceAndSavesNothing) {
  LimitedRun run;
  run.options.best_path = "/nonexistent/folder/best.pth";
  run.options.epochs = 100;
  run.options.limits.fast_dev_run = 2;
  ASSERT_TRUE(run.Fit().ok());
  EXPECT_EQ(run.diary.steps, 2);
  EXPECT_EQ(run.diary.validations, 1);
}

/// Batches that tell their epoch and place.
struct Places : BatchSource<std::pair<size_t, size_t>> {
  void StartEpoch(size_t e) override { epoch = e, next = 0; }
  std::optional<std::pair<size_t, size_t>> Next() override {
    if (next == 4) return std::nullopt;
    return std::pair{epoch, next++};
  }
  size_t num_batches() const override { return 4; }
  size_t epoch = 0, next = 0;
};

TEST(LimitedSource, OverfittingSeesTheSameBatchesEachEpoch) {
  Places places;
  LimitedSource<std::pair<size_t, size_t>> source(places, 2, /*one_epoch=*/true);
  EXPECT_EQ(source.num_batches(), 2u);
  for (size_t epoch = 0; epoch < 3; ++epoch) {
    source.StartEpoch(epoch);
    EXPECT_EQ(source.Next(), (std::pair<size_t, size_t>(0, 0)));
    EXPECT_EQ(source.Next(), (std::pair<size_t, size_t>(0, 1)));
    EXPECT_FALSE(source.Next());
  }
  source.StartEpoch(0);
  EXPECT_FALSE(source.Skip(3));
  EXPECT_FALSE(source.StartRest(0, {}));
  LimitedSource<std::pair<size_t, size_t>> all(places, 0);
  all.StartEpoch(7);
  EXPECT_TRUE(all.Skip(3));
  EXPECT_EQ(all.Next(), (std::pair<size_t, size_t>(7, 3)));
  EXPECT_FALSE(all.Next());
}

}  // namespace
}  // namespace lockstep
