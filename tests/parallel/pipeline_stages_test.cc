// Stages of many kinds: losses and gradients are those of the unsplit model.

#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>
#include <c10/core/InferenceMode.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/linear.h>
#include <torch/utils.h>

#include <functional>
#include <memory>
#include <vector>

#include "lockstep/amp/autocast.h"
#include "lockstep/comm/collectives.h"
#include "lockstep/comm/process_group.h"
#include "lockstep/parallel/pipeline.h"
#include "tests/ddp/expect_error.h"

namespace lockstep {
namespace {

using torch::nn::Linear;

const ProcessGroupPtr& Group() {
  static const ProcessGroupPtr group = InitProcessGroup().value();
  return group;
}

int Rank() { return GetRank(Group()); }
int World() { return GetWorldSize(Group()); }

constexpr PipelineSchedule kSchedules[] = {PipelineSchedule::kGPipe, PipelineSchedule::kOneForwardOneBackward};

/// Of a stage: its input becomes its output, by a weight of its own where it likes.
using StageOf = std::function<at::Tensor(int rank, at::Tensor x, Linear& layer)>;

at::Tensor SquareError(const at::Tensor& output, const at::Tensor& target) {
  return (at::real(output * output.conj()).sum(1) - target).square().mean();
}

/// Trains the stages with micro-batches and without a pipeline, and compares this rank's layer.
void ExpectAsUnsplit(const StageOf& stage, int64_t micro_batches = 4, at::ScalarType dtype = at::kDouble) {
  for (const auto schedule : kSchedules) {
    const auto layers = [&] {
      torch::manual_seed(3);
      std::vector<Linear> made;
      for (int r = 0; r < World(); ++r) {
        made.emplace_back(5, 5);
        made.back()->to(dtype);
      }
      return made;
    };
    std::vector<Linear> whole = layers(), split = layers();
    PipelineOptions options;
    options.schedule = schedule;
    options.micro_batches = micro_batches;
    options.loss = SquareError;
    Pipeline pipeline([&](const at::Tensor& x) { return stage(Rank(), x, split[Rank()]); }, Group(), options);
    for (int step = 0; step < 2; ++step) {
      torch::manual_seed(step);
      const at::Tensor x = at::randn({11, 5}, dtype), y = at::rand({11}, dtype), used = x.clone();
      const double loss = pipeline.Step(used, y).item<double>();
      at::Tensor expected = at::zeros({}, dtype);
      const auto targets = y.chunk(micro_batches);
      const auto pieces = x.clone().chunk(micro_batches);
      for (size_t i = 0; i < pieces.size(); ++i) {
        at::Tensor out = pieces[i].clone();
        for (int r = 0; r < World(); ++r) out = stage(r, out, whole[r]);
        expected = expected + SquareError(out, targets[i]) * (static_cast<double>(targets[i].size(0)) / 11);
      }
      if (expected.requires_grad()) expected.backward();
      EXPECT_NEAR(loss, expected.item<double>(), 1e-5 * (1 + loss));
      const at::Tensor &mine = split[Rank()]->weight.grad(), &theirs = whole[Rank()]->weight.grad();
      // What needs a gradient and gets none has zeros behind it in a pipeline.
      if (!theirs.defined()) {
        EXPECT_TRUE(!mine.defined() || mine.eq(0).all().item<bool>());
      } else {
        ASSERT_TRUE(mine.defined());
        EXPECT_TRUE(at::allclose(mine, theirs, 1e-4, 1e-6));
      }
    }
  }
}

TEST(PipelineStages, ThatChangeTheirInputInPlace) {
  ExpectAsUnsplit([](int, at::Tensor x, Linear& layer) { return layer->forward(x.relu_()); });
  ExpectAsUnsplit([](int, at::Tensor x, Linear& layer) { return x.mul_(layer->weight[0]).add_(1); });
  ExpectAsUnsplit([](int, at::Tensor x, Linear& layer) { return layer->forward(x.unsqueeze_(1)).squeeze(1); });
}

TEST(PipelineStages, AnInputThatIsChangedInPlaceCountsAsChangedForTheCaller) {
  Linear layer(5, 5);
  PipelineOptions options;
  options.loss = SquareError;
  Pipeline pipeline([&](const at::Tensor& x) { return layer->forward(at::Tensor(x).div_(2)); }, Group(), options);
  const at::Tensor x = at::ones({8, 5});
  const int64_t version = x._version();
  pipeline.Step(x, at::ones({8}));
  pipeline.Evaluate(x);
  EXPECT_EQ(x._version() != version, pipeline.is_first());
}

TEST(PipelineStages, ThatOnlyPassOnOrGiveViews) {
  ExpectAsUnsplit([](int rank, at::Tensor x, Linear& layer) { return rank == 1 ? x : layer->forward(x); });
  ExpectAsUnsplit([](int, at::Tensor x, Linear& layer) { return layer->forward(x.flip({1})).t().contiguous().t(); });
}

TEST(PipelineStages, ThatGiveTransposedAndExpandedTensors) {
  ExpectAsUnsplit([](int rank, at::Tensor x, Linear& layer) {
    x = rank == 0 ? x : x.select(1, 0);  // what came is (samples, 5, 5)
    x = layer->forward(x);
    return rank + 1 < World() ? x.unsqueeze(2).expand({-1, -1, 5}).transpose(1, 2) : x;
  });
}

TEST(PipelineStages, ComplexAndLazilyConjugatedActivations) {
  ExpectAsUnsplit([](int rank, at::Tensor x, Linear& layer) {
    if (rank > 0) x = at::real(x) + 2 * at::imag(x);
    x = layer->forward(x);
    return rank + 1 < World() ? at::complex(x, x * x).conj() : x;
  });
}

TEST(PipelineStages, ThatCutTheGraph) {
  ExpectAsUnsplit([](int rank, at::Tensor x, Linear& layer) { return layer->forward(rank == 1 ? x.detach() : x); });
  ExpectAsUnsplit([](int rank, at::Tensor x, Linear& layer) {  // whole numbers travel
    if (rank == 1) x = x.to(at::kDouble) / 100;
    x = layer->forward(x);
    return rank == 0 && World() > 1 ? (x * 100).to(at::kLong) : x;
  });
}

TEST(PipelineStages, AnyNumberOfMicroBatches) {
  for (const int64_t micro_batches : {1, 2, 3, 7, 11, 30}) {
    ExpectAsUnsplit([](int, at::Tensor x, Linear& layer) { return layer->forward(x).tanh(); }, micro_batches);
  }
}

TEST(PipelineStages, OneThatIsFrozenBetweenSteps) {
  int calls = 0;
  ExpectAsUnsplit(
      [&](int rank, at::Tensor x, Linear& layer) {
        if (rank == 0) layer->weight.set_requires_grad((calls++ / 2) % 2 != 0);  // with and without a pipeline
        return layer->forward(x);
      },
      /*micro_batches=*/1);
}

/// Each has a copy, and the copies' gradients are added up.
TEST(PipelineStages, AWeightThatTheFirstAndTheLastShare) {
  if (World() == 1) return;
  torch::manual_seed(4);
  const at::Tensor start = at::randn({5, 5}, at::kDouble), x = at::randn({8, 5}, at::kDouble),
                   y = at::rand({8}, at::kDouble);
  const bool has = Rank() == 0 || Rank() == World() - 1;
  at::Tensor weight = start.clone().requires_grad_(), whole = start.clone().requires_grad_();
  PipelineOptions options;
  options.loss = SquareError;
  Pipeline pipeline([&](const at::Tensor& in) { return has ? at::linear(in, weight).tanh() : in.tanh(); }, Group(),
                    options);
  const ProcessGroupPtr both = has ? NewSubGroup(Group(), {0, World() - 1}).value() : nullptr;
  for (int step = 0; step < 3; ++step) {
    weight.mutable_grad().reset();
    whole.mutable_grad().reset();
    pipeline.Step(x, y);
    at::Tensor out = at::linear(x, whole).tanh();
    for (int r = 1; r + 1 < World(); ++r) out = out.tanh();
    SquareError(at::linear(out, whole).tanh(), y).backward();
    const at::NoGradGuard no_grad;
    whole.add_(whole.grad(), -0.1);
    if (!has) continue;
    AllReduce(weight.mutable_grad(), both);
    weight.add_(weight.grad(), -0.1);
    EXPECT_TRUE(at::allclose(weight, whole));
  }
}

TEST(PipelineStages, UnderAutocast) {
  const AutocastGuard autocast(at::kCPU, at::kBFloat16);
  ExpectAsUnsplit([](int, at::Tensor x, Linear& layer) { return layer->forward(x).tanh(); }, 4, at::kFloat);
}

TEST(PipelineStages, EvaluationInInferenceModeAndThenTraining) {
  Linear layer(5, 5);
  PipelineOptions options;
  options.loss = SquareError;
  Pipeline pipeline([&](const at::Tensor& x) { return layer->forward(x); }, Group(), options);
  {
    const c10::InferenceMode inference;
    const at::Tensor out = pipeline.Evaluate(at::ones({3, 5}), /*everywhere=*/true);
    EXPECT_EQ(out.sizes(), at::IntArrayRef({3, 5}));
    EXPECT_GT(pipeline.Step(at::ones({3, 5}), at::ones({3})).item<double>(), 0);
  }
  EXPECT_FALSE(layer->weight.grad().defined());
  pipeline.Step(at::ones({3, 5}), at::ones({3}));
  EXPECT_TRUE(layer->weight.grad().defined());
}

TEST(PipelineStages, EvaluationOfNoSamples) {
  Linear layer(5, 5);
  Pipeline pipeline([&](const at::Tensor& x) { return layer->forward(x); }, Group(), {});
  EXPECT_EQ(pipeline.Evaluate(at::ones({0, 5}), /*everywhere=*/true).sizes(), at::IntArrayRef({0, 5}));
}

TEST(PipelineStages, NoTensorFromAStageIsNamed) {
  PipelineOptions options;
  options.loss = SquareError;
  Pipeline pipeline([](const at::Tensor&) { return at::Tensor(); }, nullptr, options);
  ExpectError([&] { pipeline.Step(at::ones({3, 5}), at::ones({3})); }, {"stage 0 gives an undefined tensor"});
  ExpectError([&] { pipeline.Evaluate(at::ones({3, 5})); }, {"stage 0 gives an undefined tensor"});
}

}  // namespace
}  // namespace lockstep
