#include "lockstep/parallel/pipeline.h"

#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>
#include <gtest/gtest.h>
#include <torch/nn/functional/loss.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/dropout.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/sgd.h>
#include <torch/utils.h>

#include <algorithm>
#include <memory>
#include <vector>

#include "lockstep/comm/process_group.h"
#include "tests/ddp/expect_error.h"

namespace lockstep {
namespace {

using torch::nn::Linear;
using torch::nn::Sequential;

const ProcessGroupPtr& Group() {
  static const ProcessGroupPtr group = InitProcessGroup().value();
  return group;
}

bool IsLast() { return GetRank(Group()) == GetWorldSize(Group()) - 1; }

constexpr PipelineSchedule kSchedules[] = {PipelineSchedule::kGPipe, PipelineSchedule::kOneForwardOneBackward};

/// The whole model, one stage for each rank, on every rank alike. Sizes grow from stage to stage.
std::vector<Sequential> Stages() {
  torch::manual_seed(1206);
  std::vector<Sequential> stages;
  for (int64_t s = 0; s < GetWorldSize(Group()); ++s) {
    stages.emplace_back(Linear(3 + s, 8), torch::nn::Tanh(), torch::nn::Dropout(0.5), Linear(8, 4 + s));
    stages.back()->to(at::kDouble);
  }
  return stages;
}

at::Tensor Whole(std::vector<Sequential>& stages, at::Tensor x) {
  for (auto& stage : stages) x = stage->forward(x);
  return x;
}

at::Tensor CrossEntropy(const at::Tensor& output, const at::Tensor& target) {
  return torch::nn::functional::cross_entropy(output, target);
}

PipelineOptions Options(PipelineSchedule schedule, int64_t micro_batches) {
  PipelineOptions options;
  options.schedule = schedule;
  options.micro_batches = micro_batches;
  options.loss = CrossEntropy;
  return options;
}

void ExpectSameGradients(const torch::nn::Module& a, const torch::nn::Module& b) {
  const auto other = b.named_parameters();
  for (const auto& item : a.named_parameters()) {
    ASSERT_TRUE(item.value().grad().defined()) << item.key();
    EXPECT_TRUE(at::allclose(item.value().grad(), other[item.key()].grad(), 1e-6, 1e-12)) << item.key();
  }
}

void ExpectEqualsTheUnsplitModel(const ProcessGroupPtr& group) {
  for (const auto schedule : kSchedules) {
    for (const int64_t samples : {16, 13, 3}) {  // 13: the last micro-batch is smaller; 3: fewer micro-batches
      std::vector<Sequential> whole = Stages(), split = Stages();
      for (auto* list : {&whole, &split}) {
        for (auto& stage : *list) stage->eval();  // no dropout
      }
      Sequential& mine = split[GetRank(Group())];
      Pipeline pipeline(mine, group, Options(schedule, 4));
      torch::optim::SGD optimizer(mine->parameters(), torch::optim::SGDOptions(0.5));
      std::vector<at::Tensor> all;
      for (auto& stage : whole) {
        for (auto& p : stage->parameters()) all.push_back(p);
      }
      torch::optim::SGD reference(all, torch::optim::SGDOptions(0.5));
      for (int step = 0; step < 4; ++step) {
        torch::manual_seed(step);
        const at::Tensor x = at::randn({samples, 3}, at::kDouble), y = at::randint(3, {samples});
        if (step != 1) {  // step 1 accumulates on what step 0 left
          optimizer.zero_grad(step % 2 == 0);
          reference.zero_grad(step % 2 == 0);
        }
        const at::Tensor loss = pipeline.Step(x, y), expected = CrossEntropy(Whole(whole, x), y);
        expected.backward();
        EXPECT_NEAR(loss.item<double>(), expected.item<double>(), 1e-9);  // on every rank
        ExpectSameGradients(*mine, *whole[GetRank(Group())]);
        if (step != 0) {
          optimizer.step();
          reference.step();
        }
      }
    }
  }
}

TEST(Pipeline, GradientsAndLossEqualTheUnsplitModel) { ExpectEqualsTheUnsplitModel(Group()); }

TEST(Pipeline, GradientsAndLossEqualTheUnsplitModelOnGloo) {
  std::vector<int> ranks;
  for (int rank = 0; rank < GetWorldSize(Group()); ++rank) ranks.push_back(rank);
  ProcessGroupOptions options;
  options.backend = "gloo";
  ExpectEqualsTheUnsplitModel(NewSubGroup(Group(), ranks, options).value());
}

TEST(Pipeline, InputsAndTargetsAreNeededAtTheEndsOnly) {
  Sequential stage = Stages()[GetRank(Group())];
  Pipeline pipeline(stage, Group(), Options(PipelineSchedule::kOneForwardOneBackward, 3));
  const at::Tensor x = at::ones({6, 3}, at::kDouble), y = at::zeros({6}, at::kLong);
  const double loss =
      pipeline.Step(pipeline.is_first() ? x : at::Tensor(), pipeline.is_last() ? y : at::Tensor()).item<double>();
  EXPECT_GT(loss, 0);
  for (const auto& p : stage->parameters()) EXPECT_TRUE(p.grad().defined());
}

TEST(Pipeline, SumsAreAddedWithoutWeights) {
  std::vector<Sequential> whole = Stages(), split = Stages();
  for (auto* list : {&whole, &split}) {
    for (auto& stage : *list) stage->eval();
  }
  PipelineOptions options = Options(PipelineSchedule::kGPipe, 3);
  options.loss_is_mean = false;
  options.loss = [](const at::Tensor& output, const at::Tensor& target) { return (output.sum(1) * target).sum(); };
  Sequential& mine = split[GetRank(Group())];
  Pipeline pipeline(mine, Group(), options);
  torch::manual_seed(1);
  const at::Tensor x = at::randn({7, 3}, at::kDouble), y = at::randn({7}, at::kDouble);
  const at::Tensor loss = pipeline.Step(x, y), expected = options.loss(Whole(whole, x), y);
  expected.backward();
  EXPECT_NEAR(loss.item<double>(), expected.item<double>(), 1e-9);
  ExpectSameGradients(*mine, *whole[GetRank(Group())]);
}

/// Counts activations that are alive at once.
struct Living {
  std::vector<c10::weak_intrusive_ptr<c10::StorageImpl>> activations;
  int64_t most = 0;
  void Add(const at::Tensor& activation) {
    activations.push_back(activation.storage().getWeakStorageImpl());
    const auto alive = std::count_if(activations.begin(), activations.end(),
                                     [](const auto& storage) { return storage.use_count() > 0; });
    most = std::max(most, static_cast<int64_t>(alive));
  }
};

TEST(Pipeline, OneForwardOneBackwardKeepsActivationsByStagesAndGPipeByMicroBatches) {
  const int64_t rank = GetRank(Group()), behind = GetWorldSize(Group()) - 1 - rank, micro_batches = 9;
  for (const auto schedule : kSchedules) {
    Linear in(3 + rank, 8), out(8, 4 + rank);
    Living living;
    Pipeline pipeline(
        [&](const at::Tensor& x) {
          const at::Tensor hidden = at::tanh(in->forward(x));
          living.Add(hidden);
          return out->forward(hidden);
        },
        Group(), Options(schedule, micro_batches));
    for (int step = 0; step < 2; ++step) pipeline.Step(at::ones({18, 3}), at::zeros({18}, at::kLong));
    const int64_t expected = schedule == PipelineSchedule::kGPipe ? micro_batches : behind + 1;
    EXPECT_EQ(pipeline.peak_micro_batches(), expected);
    EXPECT_EQ(living.most, expected);
  }
}

/// Dtype, number of dimensions and sizes change between stages and from micro-batch to micro-batch.
TEST(Pipeline, ShapesAndDtypesAreLearntFromWhatIsSent) {
  struct Pad : torch::nn::Module {  // to the longest of the micro-batch, which has a batch of its own there
    explicit Pad(int64_t rank) : embedding(register_module("embedding", torch::nn::Embedding(10, 4))), rank(rank) {}
    at::Tensor forward(const at::Tensor& x) {
      if (rank == 0) return embedding->forward(x.narrow(1, 0, x.max().item<int64_t>() + 1)).to(at::kBFloat16);
      return (rank % 2 == 1 ? x.unsqueeze(1) : x.squeeze(1)).to(rank % 2 == 1 ? at::kDouble : at::kFloat) * 2;
    }
    torch::nn::Embedding embedding;
    const int64_t rank;
  };
  torch::manual_seed(2);
  const at::Tensor x = at::arange(8).view({8, 1}).expand({8, 10}).contiguous(), y = at::ones({8});
  const int rank = GetRank(Group()), world = GetWorldSize(Group());
  std::vector<std::shared_ptr<Pad>> whole;
  for (int r = 0; r < world; ++r) whole.push_back(std::make_shared<Pad>(r));
  const auto mine = std::make_shared<Pad>(rank);
  {
    const at::NoGradGuard no_grad;
    mine->embedding->weight.copy_(whole[rank]->embedding->weight);
  }
  PipelineOptions options = Options(PipelineSchedule::kOneForwardOneBackward, 4);
  options.loss = [](const at::Tensor& output, const at::Tensor& target) {
    return output.to(at::kDouble).flatten(1).square().sum(1).mean();
  };
  Pipeline pipeline([&](const at::Tensor& in) { return mine->forward(in); }, Group(), options);
  const double loss = pipeline.Step(x, y).item<double>();
  double expected = 0;
  for (const auto& piece : x.chunk(4)) {
    at::Tensor out = piece;
    for (auto& stage : whole) out = stage->forward(out);
    const at::Tensor part = options.loss(out, piece) / 4;
    part.backward();
    expected += part.item<double>();
  }
  EXPECT_NEAR(loss, expected, 1e-9);
  if (rank == 0) {
    EXPECT_TRUE(at::allclose(mine->embedding->weight.grad(), whole[0]->embedding->weight.grad(), 1e-6, 1e-12));
  }
}

TEST(Pipeline, AStageThatNeedsNoGradientGetsNone) {
  std::vector<Sequential> split = Stages();
  Sequential& mine = split[GetRank(Group())];
  if (GetRank(Group()) == 0) {
    for (auto& p : mine->parameters()) p.set_requires_grad(false);
  }
  Pipeline pipeline(mine, Group(), Options(PipelineSchedule::kOneForwardOneBackward, 4));
  pipeline.Step(at::ones({8, 3}, at::kDouble), at::zeros({8}, at::kLong));
  for (const auto& p : mine->parameters()) EXPECT_EQ(p.grad().defined(), GetRank(Group()) != 0);
}

TEST(Pipeline, WithoutGradientsAStepGivesTheLossOnly) {
  std::vector<Sequential> whole = Stages();
  for (auto& stage : whole) stage->eval();
  Sequential& mine = whole[GetRank(Group())];
  Pipeline pipeline(mine, Group(), Options(PipelineSchedule::kOneForwardOneBackward, 4));
  const at::NoGradGuard no_grad;
  const at::Tensor x = at::ones({5, 3}, at::kDouble), y = at::zeros({5}, at::kLong);
  EXPECT_NEAR(pipeline.Step(x, y).item<double>(), CrossEntropy(Whole(whole, x), y).item<double>(), 1e-9);
  for (const auto& p : mine->parameters()) EXPECT_FALSE(p.grad().defined());
}

TEST(Pipeline, EvaluateGivesAllOutputs) {
  std::vector<Sequential> whole = Stages();
  for (auto& stage : whole) stage->eval();
  Sequential& mine = whole[GetRank(Group())];
  Pipeline pipeline(mine, Group(), Options(PipelineSchedule::kOneForwardOneBackward, 4));
  torch::manual_seed(3);
  const at::Tensor x = at::randn({11, 3}, at::kDouble), expected = Whole(whole, x);
  EXPECT_TRUE(at::allclose(pipeline.Evaluate(x, /*everywhere=*/true), expected));
  const at::Tensor out = pipeline.Evaluate(x);
  EXPECT_EQ(out.defined(), IsLast());
  if (IsLast()) {
    EXPECT_TRUE(at::allclose(out, expected));
  }
}

TEST(Pipeline, TrainsWithDropoutInTrainingMode) {
  Sequential mine = Stages()[GetRank(Group())];
  Pipeline pipeline(mine, Group(), Options(PipelineSchedule::kOneForwardOneBackward, 4));
  torch::optim::SGD optimizer(mine->parameters(), torch::optim::SGDOptions(0.5));
  torch::manual_seed(4 + GetRank(Group()));
  double first = 0, last = 0;
  for (int step = 0; step < 60; ++step) {
    optimizer.zero_grad();
    last = pipeline.Step(at::ones({8, 3}, at::kDouble), at::ones({8}, at::kLong)).item<double>();
    if (step == 0) first = last;
    optimizer.step();
  }
  EXPECT_LT(last, 0.5 * first);
}

TEST(Pipeline, WrongOptionsAndInputsAreNamed) {
  ExpectError([] { Pipeline(Stages()[0], Group(), Options(PipelineSchedule::kGPipe, 0)); }, {"0 micro-batches"});
  if (Group()) return;  // what one stage alone sees, it alone throws
  Pipeline pipeline(Stages()[0], nullptr, Options(PipelineSchedule::kGPipe, 2));
  const at::Tensor x = at::ones({4, 3}, at::kDouble);
  ExpectError([&] { pipeline.Step(x, at::zeros({3}, at::kLong)); },
              {"4 samples on the first stage and 3 targets on the last"});
  ExpectError([&] { pipeline.Step(at::Tensor(), at::zeros({3}, at::kLong)); }, {"the first stage needs inputs"});
  ExpectError([&] { pipeline.Step(x.narrow(0, 0, 0), at::zeros({0}, at::kLong)); }, {"the batch has no samples"});
}

}  // namespace
}  // namespace lockstep
