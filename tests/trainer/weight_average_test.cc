#include "lockstep/trainer/weight_average.h"

#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>
#include <c10/util/Exception.h>
#include <gtest/gtest.h>

#include <cstdio>
#include <string>
#include <vector>

#include "lockstep/checkpoint/checkpoint_writer.h"
#include "lockstep/trainer/progress.h"
#include "lockstep/trainer/trainer.h"
#include "training_run.h"

namespace lockstep {
namespace {

struct KeptWriter : CheckpointWriter {
  absl::Status Save(const Value& state, const std::string& path) override {
    weight = state.find("model")->find("weight")->tensor()->clone();
    return absl::OkStatus();
  }
  at::Tensor weight;
};

struct Better : NeverStop {
  absl::StatusOr<Verdict> Check(const std::map<std::string, double>&) override { return Verdict{true, false}; }
};

/// The weights after each step, and their average as torch.optim.swa_utils makes it.
struct Weights : TrainObserver {
  explicit Weights(torch::nn::Linear& layer, double decay) : layer(layer), decay(decay) {}
  void OnStepEnd(StepInfo&) override {
    now = layer->weight.detach().clone();
    average = average.defined() ? average * decay + now * (1 - decay) : now;
  }
  torch::nn::Linear& layer;
  const double decay;
  at::Tensor now, average;
};

TEST(WeightAverage, ValidationsAndTheBestStateSeeTheAverageAndTrainingDoesNot) {
  TrainingRun plain({2, 2, 2}), averaged({2, 2, 2});
  plain.options.epochs = averaged.options.epochs = 2;
  WeightAverage average(*averaged.layer, 0.7);
  Weights weights(averaged.layer, 0.7);
  KeptWriter writer;
  Better better;
  averaged.pieces.observers = {&weights, &average, &averaged.steps};
  averaged.pieces.writer = &writer;
  averaged.pieces.state.stop = &better;
  averaged.options.best_path = "best.pth";
  averaged.options.limits.validate_every_steps = 2;
  int evaluations = 0;
  averaged.pieces.eval_step = [&, inner = averaged.pieces.train_step](at::Tensor& x) {
    EXPECT_TRUE(at::allclose(averaged.layer->weight, weights.average));
    ++evaluations;
    return inner(x);
  };
  ASSERT_TRUE(plain.Fit().ok());
  ASSERT_TRUE(averaged.Fit().ok());
  EXPECT_EQ(evaluations, 4);  // after steps 2 and 4 of all, and at both epochs' ends
  EXPECT_TRUE(averaged.layer->weight.equal(plain.layer->weight));
  EXPECT_FALSE(at::allclose(weights.average, weights.now));
  EXPECT_EQ(writer.weight.defined(), Rank() == 0);
  EXPECT_TRUE(Rank() != 0 || at::allclose(writer.weight, weights.average));
}

TEST(WeightAverage, ASavedAverageGoesOn) {
  torch::manual_seed(1);
  torch::nn::Linear layer(3, 2);
  WeightAverage first(*layer, 0.5);
  StepInfo info;
  const auto step = [&](double by) {
    const c10::NoGradGuard no_grad;
    layer->weight.add_(by);
  };
  first.OnStepEnd(info);
  step(1);
  first.OnStepEnd(info);
  WeightAverage second(*layer, 0.5);
  ASSERT_TRUE(second.LoadState(first.SaveState()).ok());
  step(2);
  const at::Tensor own = layer->weight.detach().clone();
  for (WeightAverage* average : {&first, &second}) {
    average->OnStepEnd(info);
    average->OnValidationStart();
    // 0, then 1, then 3 above the start: 0.5 · (0.5 · 0 + 0.5 · 1) + 0.5 · 3
    EXPECT_TRUE(at::allclose(layer->weight, own - 3 + 1.75));
    EXPECT_TRUE(at::allclose(*(*average->SaveState().find("averages")->items())[0].tensor(), own - 3 + 1.75));
    average->OnValidationEnd();
    EXPECT_TRUE(layer->weight.equal(own));
  }
}

TEST(WeightAverage, WhatDoesntFitIsRefused) {
  torch::nn::Linear layer(3, 2), other(4, 2);
  WeightAverage average(*layer, 0.5), wrong(*other, 0.5);
  StepInfo info;
  average.OnStepEnd(info);
  EXPECT_FALSE(wrong.LoadState(average.SaveState()).ok());
  EXPECT_FALSE(wrong.LoadState(Value(3)).ok());
  EXPECT_THROW(WeightAverage(*layer, 1), c10::Error);
}

TEST(MeanPrinter, PrintsMeansOverAllRanksOnRankZero) {
  TrainingRun run({2, 2});
  std::FILE* const out = std::tmpfile();
  MeanPrinter printer(Group(), 2, out);
  run.pieces.observers.push_back(&printer);
  run.pieces.train_step = [&](at::Tensor& x) {
    StepOutput output;
    output.loss = run.ddp->forward(x).sum() * 0 + Rank() + 1;  // 1 and 2
    output.samples = Rank() == 0 ? 1 : 3;
    output.sums = {{"accuracy", at::full({}, Rank() == 0 ? 1. : 0.)}};
    return output;
  };
  ASSERT_TRUE(run.Fit().ok());
  std::string text(1000, ' ');
  std::rewind(out);
  text.resize(std::fread(text.data(), 1, text.size(), out));
  std::fclose(out);
  if (Rank() != 0) {
    EXPECT_EQ(text, "");
    return;
  }
  EXPECT_EQ(text.find("epoch: 1, step: 2/2, loss: 1.7500, accuracy: 0.2500, lr: 0.05\n"), 0u) << text;
  EXPECT_NE(text.find("epoch: 1/1, "), std::string::npos) << text;
  EXPECT_NE(text.find("train loss: 1.75"), std::string::npos) << text;
}

}  // namespace
}  // namespace lockstep
