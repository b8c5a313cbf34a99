// What the trainer makes of batches: accumulation, weights, join, clipping, checks, traces.

#include "lockstep/trainer/gradient_step.h"

#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/nn/functional/loss.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/schedulers/step_lr.h>
#include <torch/optim/sgd.h>
#include <unistd.h>

#include <cmath>
#include <cstdlib>
#include <fstream>
#include <nlohmann/json.hpp>

#include "lockstep/trainer/step_range.h"
#include "lockstep/trainer/trace_writer.h"
#include "training_run.h"

namespace lockstep {
namespace {

TEST(Accumulation, EqualsOneLargeBatchAlsoInAWindowThatTheEpochCuts) {
  for (bool tells : {true, false}) {
    TrainingRun s({4, 4, 4, 4, 4}, tells);
    s.options.gradients.accumulate = 2;
    ASSERT_TRUE(s.Fit().ok());
    std::vector<std::function<at::Tensor(torch::nn::LinearImpl&)>> losses;
    for (size_t from : {0, 2, 4}) {
      losses.push_back([from](auto& layer) {
        return Loss(layer, All(from, std::min<size_t>(from + 2, 5), [](int, size_t) { return 4; }));
      });
    }
    ExpectEqual(s.layer, Reference(losses));
    EXPECT_EQ(s.steps.losses.size(), 3u);
    EXPECT_EQ(s.steps.starts, 3);
    EXPECT_EQ(s.steps.planned, tells ? 3u : 0u);
    EXPECT_EQ(s.steps.metrics["train_ones"], 1);
  }
}

TEST(Accumulation, CommunicatesOncePerStepAndSchedulesOnRealSteps) {
  TrainingRun s({4, 4, 4, 4, 4, 4});
  s.options.gradients.accumulate = 3;
  s.options.schedule_each_step = true;
  torch::optim::StepLR schedule(*s.optimizer, 1, 0.5);
  s.pieces.scheduler = &schedule;
  ASSERT_TRUE(s.Fit().ok());
  if (World() > 1) {
    EXPECT_EQ(s.ddp->bucketed_reducer()->statistics().backwards, 2);
  }
  EXPECT_EQ(s.steps.rates.size(), 2u);
  EXPECT_EQ(s.optimizer->param_groups()[0].options().get_lr(), 0.025);  // LibTorch's schedule counts one late
}

TEST(WeightBySamples, EqualsOneProcessForAnySplit) {
  const auto size = [](int rank, size_t i) { return static_cast<int64_t>(1 + (rank * 3 + i * 2) % 5); };
  for (size_t accumulate : {1, 2}) {
    std::vector<int64_t> mine;
    for (size_t i = 0; i < 5; ++i) mine.push_back(size(Rank(), i));
    TrainingRun s(mine);
    s.options.gradients.accumulate = accumulate;
    s.options.gradients.weight_by_samples = true;
    ASSERT_TRUE(s.Fit().ok());
    std::vector<std::function<at::Tensor(torch::nn::LinearImpl&)>> losses;
    for (size_t from = 0; from < 5; from += accumulate) {
      losses.push_back(
          [=](auto& layer) { return Loss(layer, All(from, std::min<size_t>(from + accumulate, 5), size)); });
    }
    ExpectEqual(s.layer, Reference(losses));
  }
}

/// Ranks with 2, 3, … batches give the parameters of one process; `penalty` says whether the loss has a term that
/// doesn't go through what forward returns.
void ExpectJoined(bool penalty) {
  const auto extra = [penalty](const torch::nn::LinearImpl& layer) {
    return penalty ? layer.weight.square().sum() : at::zeros({}, at::kDouble);
  };
  for (const bool weighted : {false, true}) {
    for (const size_t accumulate : {1, 2}) {
      TrainingRun s(std::vector<int64_t>(2 + Rank(), 4));
      s.pieces.joinables = {s.ddp.get()};
      s.options.gradients.accumulate = accumulate;
      s.options.gradients.weight_by_samples = weighted;
      const auto plain = s.pieces.eval_step;
      s.pieces.train_step = [&](at::Tensor& x) {
        StepOutput output = plain(x);
        output.loss = output.loss + extra(*s.layer);
        return output;
      };
      const absl::Status status = s.Fit();
      ASSERT_TRUE(status.ok()) << status;
      const size_t longest = 1 + World();
      EXPECT_EQ(s.steps.losses.size(), (longest + accumulate - 1) / accumulate);
      std::vector<std::function<at::Tensor(torch::nn::LinearImpl&)>> losses;
      for (size_t from = 0; from < longest; from += accumulate) {
        losses.push_back([=](auto& layer) {
          const size_t to = std::min(from + accumulate, longest);
          at::Tensor sum = at::zeros({}, at::kDouble);
          int64_t batches = 0;
          for (int rank = 0; rank < World(); ++rank) {
            for (size_t i = from; i < std::min<size_t>(to, 2 + rank); ++i, ++batches) {
              sum = sum + Loss(layer, Batches::Make(rank, i, 4)) + extra(layer);
            }
          }
          return sum / (weighted ? batches : World() * static_cast<int64_t>(to - from));
        });
      }
      ExpectEqual(s.layer, Reference(losses));
      s.ddp->CheckParametersEqual();
      EXPECT_EQ(s.steps.metrics["train_ones"], 1);
    }
  }
}

TEST(TrainerJoin, RanksMayHaveDifferentNumbersOfBatches) { ExpectJoined(/*penalty=*/false); }
TEST(TrainerJoin, APenaltyOnParametersOfAShadowCountsForNothing) { ExpectJoined(/*penalty=*/true); }

TEST(TrainerJoin, ARankWithoutAnyBatchIsAnErrorOnAll) {
  if (World() == 1) return;
  TrainingRun s(std::vector<int64_t>(Rank() == 1 ? 0 : 3, 4));
  s.pieces.joinables = {s.ddp.get()};
  try {
    const absl::Status status = s.Fit();
    ADD_FAILURE() << status;
  } catch (const std::exception& e) {
    EXPECT_NE(std::string(e.what()).find("rank 1"), std::string::npos) << e.what();
    EXPECT_NE(std::string(e.what()).find("no batch at all"), std::string::npos) << e.what();
  }
}

TEST(Clipping, BoundsTheNormOfEachStep) {
  TrainingRun s({4, 4});
  s.options.gradients.max_grad_norm = 1e-3;
  const at::Tensor before = s.layer->weight.detach().clone();
  ASSERT_TRUE(s.Fit().ok());
  const double moved = (s.layer->weight.detach() - before).norm().item<double>();
  EXPECT_LE(moved, 2 * 0.05 * 1e-3 * 1.0001);
  EXPECT_GT(moved, 0);
}

TEST(CheckParameters, NamesTheFirstThatHasDrifted) {
  TrainingRun s({4, 4, 4, 4});
  s.options.gradients.check_parameters_every = 2;
  ASSERT_TRUE(s.Fit().ok());
  if (World() == 1) return;
  const auto step = s.pieces.train_step;
  int calls = 0;
  s.pieces.train_step = [&](at::Tensor& x) {
    if (++calls == 4 && Rank() == 1) {
      const at::NoGradGuard no_grad;
      s.layer->bias.add_(1e-12);
    }
    return step(x);
  };
  try {
    (void)s.Fit();
    ADD_FAILURE() << "no error";
  } catch (const std::exception& e) {
    EXPECT_NE(std::string(e.what()).find("no longer equal: bias on rank 1"), std::string::npos) << e.what();
  }
  EXPECT_EQ(calls, 4);
}

void ExpectAnomaly(const std::function<at::Tensor(at::Tensor)>& spoil, const std::vector<std::string>& parts) {
  TrainingRun s({4, 4, 4});
  s.options.gradients.detect_anomaly = true;
  int calls = 0;
  s.pieces.train_step = [&](at::Tensor& x) {
    const at::Tensor out = s.ddp->forward(x);
    // On the last rank, in the second step.
    const at::Tensor loss = ++calls == 2 && Rank() == World() - 1 ? spoil(out).mean() : out.square().mean();
    return StepOutput{loss, x.size(0)};
  };
  try {
    const absl::Status status = s.Fit();
    ADD_FAILURE() << "no error; " << status;
  } catch (const std::exception& e) {
    for (const auto& part : parts) EXPECT_NE(std::string(e.what()).find(part), std::string::npos) << e.what();
    if (World() > 1) {
      EXPECT_NE(std::string(e.what()).find("rank " + std::to_string(World() - 1)), std::string::npos) << e.what();
    }
  }
  EXPECT_EQ(calls, 2);
}

TEST(Anomaly, NamesTheNodeAndTheFirstParameter) {
  ExpectAnomaly([](at::Tensor out) { return at::sqrt(out * 0) * 0; }, {"SqrtBackward0", "nan", "parameter bias"});
}

TEST(Anomaly, AnInfiniteGradientNamesTheFirstParameter) {
  ExpectAnomaly([](at::Tensor out) { return out * std::numeric_limits<double>::infinity(); },
                {"not finite", "parameter bias"});
}

TEST(Anomaly, LeavesASoundRunAlone) {
  TrainingRun plain({4, 4, 4}), watched({4, 4, 4});
  watched.options.gradients.detect_anomaly = true;
  ASSERT_TRUE(plain.Fit().ok());
  ASSERT_TRUE(watched.Fit().ok());
  ExpectEqual(plain.layer, watched.layer);
}

TEST(TraceWriter, WritesOperatorsAndBuckets) {
  const std::string folder = std::getenv("TEST_TMPDIR");
  TrainingRun s({4, 4, 4, 4, 4});
  TraceWriter trace({2, 3}, folder, Rank(), s.ddp.get());
  s.pieces.observers.push_back(&trace);
  ASSERT_TRUE(s.Fit().ok());
  const auto json = nlohmann::json::parse(std::ifstream(trace.path()));
  int buckets = 0, operators = 0;
  for (const auto& event : json["traceEvents"]) {
    if (event.value("cat", "") == "cpu_op") ++operators;
    if (event.value("cat", "") != "bucket") continue;
    ++buckets;
    EXPECT_GE(event["dur"].get<double>(), 0);
    EXPECT_EQ(event["args"]["bytes"], 32);
  }
  EXPECT_EQ(buckets, World() > 1 ? 2 : 0);
  EXPECT_GT(operators, 10);
}

TEST(TraceWriter, ParsesARange) {
  EXPECT_EQ(ParseStepRange("3:5")->last, 5u);
  for (const char* bad : {"", "3", "5:3", "0:3", "a:b", "1:2:3", "-1:4", "3:", "1:99999999999999999999999"}) {
    EXPECT_FALSE(ParseStepRange(bad).ok()) << bad;
  }
}

TEST(Trainer, OptionsThatNeedDdpSaySo) {
  if (World() == 1) return;
  TrainingRun s({4});
  struct WithoutDdp : DdpStrategy {
    using DdpStrategy::DdpStrategy;
    DistributedDataParallelBase* ddp() override { return nullptr; }
  } strategy(*s.ddp);
  s.pieces.strategy = &strategy;
  s.options.gradients.weight_by_samples = true;
  EXPECT_NE(s.Fit().message().find("need DistributedDataParallel"), std::string::npos);
}

}  // namespace
}  // namespace lockstep
