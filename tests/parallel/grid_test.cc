#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>
#include <gtest/gtest.h>
#include <torch/nn/functional/loss.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/sgd.h>
#include <torch/utils.h>

#include <memory>
#include <vector>

#include "lockstep/comm/process_group.h"
#include "lockstep/ddp/bucketed_reducer.h"
#include "lockstep/ddp/named_parameters.h"
#include "lockstep/parallel/pipeline.h"
#include "lockstep/parallel/rank_grid.h"
#include "lockstep/ddp/distributed_data_parallel.h"

// Pipelines side by side: ranks are stages × replicas.

namespace lockstep {
namespace {

using torch::nn::Linear;
using torch::nn::Sequential;

constexpr int kStages = 2;

const ProcessGroupPtr& Group() {
  static const ProcessGroupPtr group = InitProcessGroup().value();
  return group;
}

const RankGrid& Grid() {
  static const RankGrid grid = MakeRankGrid(Group(), kStages).value();
  return grid;
}

int NumReplicas() { return GetWorldSize(Group()) / kStages; }

std::vector<Sequential> Stages() {
  torch::manual_seed(1206);
  std::vector<Sequential> stages = {Sequential(Linear(4, 16), torch::nn::Tanh(), Linear(16, 8)),
                                    Sequential(torch::nn::Tanh(), Linear(8, 3))};
  for (auto& stage : stages) stage->to(at::kDouble);
  return stages;
}

at::Tensor CrossEntropy(const at::Tensor& output, const at::Tensor& target) {
  return torch::nn::functional::cross_entropy(output, target);
}

PipelineOptions Options(PipelineSchedule schedule) {
  PipelineOptions options;
  options.schedule = schedule;
  options.micro_batches = 4;
  options.loss = CrossEntropy;
  return options;
}

void ExpectSame(const torch::nn::Module& a, const torch::nn::Module& b) {
  const auto other = b.named_parameters();
  for (const auto& item : a.named_parameters()) {
    EXPECT_TRUE(at::allclose(item.value().grad(), other[item.key()].grad(), 1e-6, 1e-12)) << item.key();
    EXPECT_TRUE(at::allclose(item.value(), other[item.key()], 1e-6, 1e-12)) << item.key();
  }
}

/// The loss over all replicas' samples.
double MeanLoss(at::Tensor loss) {
  AllReduce(loss, Grid().data, c10d::ReduceOp::AVG);
  return loss.item<double>();
}

TEST(RankGrid, StagesAreNeighboursAndReplicasStandSideBySide) {
  const int rank = GetRank(Group());
  EXPECT_EQ(Grid().stage, rank % kStages);
  EXPECT_EQ(Grid().replica, rank / kStages);
  EXPECT_EQ(GetRank(Grid().pipeline), Grid().stage);
  EXPECT_EQ(GetWorldSize(Grid().pipeline), kStages);
  EXPECT_EQ(GetRank(Grid().data), Grid().replica);
  EXPECT_EQ(GetWorldSize(Grid().data), NumReplicas());
}

TEST(RankGrid, StagesThatDoNotDivideTheRanksAreRefused) {
  for (const int stages : {0, GetWorldSize(Group()) + 1}) {
    const auto grid = MakeRankGrid(Group(), stages);
    EXPECT_EQ(grid.status().code(), absl::StatusCode::kInvalidArgument);
  }
}

TEST(PipelinesSideBySide, InDistributedDataParallelEqualTheUnsplitModelOnTheWholeBatch) {
  for (const auto schedule : {PipelineSchedule::kGPipe, PipelineSchedule::kOneForwardOneBackward}) {
    std::vector<Sequential> whole = Stages(), split = Stages();
    Sequential& mine = split[Grid().stage];
    const auto ddp = std::make_shared<DistributedDataParallel<torch::nn::SequentialImpl>>(mine, Grid().data);
    Pipeline pipeline(ddp, Grid().pipeline, Options(schedule));
    torch::optim::SGD optimizer(ddp->parameters(), torch::optim::SGDOptions(0.5));
    std::vector<at::Tensor> all = whole[0]->parameters();
    for (const auto& p : whole[1]->parameters()) all.push_back(p);
    torch::optim::SGD reference(all, torch::optim::SGDOptions(0.5));
    const int64_t share = 7;  // of a replica: micro-batches of 2, 2, 2 and 1
    for (int step = 0; step < 5; ++step) {
      torch::manual_seed(step);
      const at::Tensor x = at::randn({share * NumReplicas(), 4}, at::kDouble), y = at::randint(3, {x.size(0)});
      optimizer.zero_grad(step % 2 == 0);
      reference.zero_grad(step % 2 == 0);
      const double loss = MeanLoss(
          pipeline.Step(x.narrow(0, Grid().replica * share, share), y.narrow(0, Grid().replica * share, share)));
      const at::Tensor expected = CrossEntropy(whole[1]->forward(whole[0]->forward(x)), y);
      expected.backward();
      EXPECT_NEAR(loss, expected.item<double>(), 1e-9);
      optimizer.step();
      reference.step();
      ExpectSame(*mine, *whole[Grid().stage]);
      if (NumReplicas() > 1) {
        // Averaged once in a step, not for each micro-batch.
        EXPECT_EQ(ddp->bucketed_reducer()->statistics().backwards, step + 1);
      }
    }
  }
}

TEST(PipelinesSideBySide, StepsUnderNoSyncAccumulateAndTheNextOneAverages) {
  std::vector<Sequential> whole = Stages(), split = Stages();
  Sequential& mine = split[Grid().stage];
  const auto ddp = std::make_shared<DistributedDataParallel<torch::nn::SequentialImpl>>(mine, Grid().data);
  Pipeline pipeline(ddp, Grid().pipeline, Options(PipelineSchedule::kOneForwardOneBackward));
  torch::manual_seed(1);
  const int64_t share = 8;
  for (int step = 0; step < 2; ++step) {
    const at::Tensor x = at::randn({share * NumReplicas(), 4}, at::kDouble), y = at::randint(3, {x.size(0)});
    const auto run = [&] {
      pipeline.Step(x.narrow(0, Grid().replica * share, share), y.narrow(0, Grid().replica * share, share));
    };
    if (step == 0) {
      const DistributedDataParallelBase::NoSync no_sync(*ddp);
      run();
    } else {
      run();
    }
    CrossEntropy(whole[1]->forward(whole[0]->forward(x)), y).backward();
  }
  ExpectSame(*mine, *whole[Grid().stage]);
}

TEST(PipelinesSideBySide, AReducerOverTheDataGroupServesToo) {
  std::vector<Sequential> whole = Stages(), split = Stages();
  Sequential& mine = split[Grid().stage];
  BucketedReducer reducer(NamedParameters(*mine), Grid().data);
  int forwards = 0;
  const auto options = Options(PipelineSchedule::kOneForwardOneBackward);
  Pipeline pipeline(
      [&](const at::Tensor& x) {
        at::Tensor out = mine->forward(x);
        const bool last = ++forwards % options.micro_batches == 0;
        last ? reducer.PrepareForBackward({out}) : reducer.PrepareForAccumulation({out});
        return out;
      },
      Grid().pipeline, options);
  torch::manual_seed(2);
  const int64_t share = 8;
  const at::Tensor x = at::randn({share * NumReplicas(), 4}, at::kDouble), y = at::randint(3, {x.size(0)});
  pipeline.Step(x.narrow(0, Grid().replica * share, share), y.narrow(0, Grid().replica * share, share));
  CrossEntropy(whole[1]->forward(whole[0]->forward(x)), y).backward();
  ExpectSame(*mine, *whole[Grid().stage]);
}

/// One of two layers, by the first number of a micro-batch.
struct ForkImpl : torch::nn::Module {
  ForkImpl() {
    torch::manual_seed(7);
    left = register_module("left", Linear(4, 8));
    right = register_module("right", Linear(4, 8));
    to(at::kDouble);
  }
  at::Tensor forward(const at::Tensor& x) { return x[0][0].item<double>() > 0 ? left(x) : right(x); }
  Linear left{nullptr}, right{nullptr};
};

/// The last micro-batch, with which gradients are averaged, doesn't take what earlier ones took.
TEST(PipelinesSideBySide, LayersThatOnlySomeMicroBatchesOfSomeReplicasUse) {
  for (const auto schedule : {PipelineSchedule::kGPipe, PipelineSchedule::kOneForwardOneBackward}) {
    for (const std::vector<double>& first : std::vector<std::vector<double>>{{1, 1, 1, -1}, {-1, 1, -1, 1}}) {
      std::vector<Sequential> whole = Stages(), split = Stages();
      const auto fork = std::make_shared<ForkImpl>(), whole_fork = std::make_shared<ForkImpl>();
      DistributedDataParallelOptions options;
      options.reducer.find_unused_parameters = true;
      const auto ddp_fork = std::make_shared<DistributedDataParallel<ForkImpl>>(fork, Grid().data, options);
      std::unique_ptr<Pipeline> pipeline;
      if (Grid().stage == 0) {
        pipeline = std::make_unique<Pipeline>(ddp_fork, Grid().pipeline, Options(schedule));
      } else {
        const auto ddp = std::make_shared<DistributedDataParallel<torch::nn::SequentialImpl>>(split[1], Grid().data);
        pipeline = std::make_unique<Pipeline>(ddp, Grid().pipeline, Options(schedule));
      }
      for (int step = 0; step < 3; ++step) {
        torch::manual_seed(step);
        at::Tensor x = at::randn({8 * NumReplicas(), 4}, at::kDouble);
        const at::Tensor y = at::randint(3, {x.size(0)});
        for (int64_t i = 0; i < x.size(0); i += 2) x[i][0] = i < 8 ? first[i / 2] : -1;  // the others: never left
        const int64_t begin = 8 * Grid().replica;
        pipeline->Step(x.narrow(0, begin, 8), y.narrow(0, begin, 8));
        at::Tensor loss = at::zeros({}, at::kDouble);
        for (int64_t i = 0; i < x.size(0); i += 2) {
          const at::Tensor out = whole[1]->forward(whole_fork->forward(x.narrow(0, i, 2)));
          loss = loss + CrossEntropy(out, y.narrow(0, i, 2)) * 2 / x.size(0);
        }
        loss.backward();
        Grid().stage == 0 ? ExpectSame(*fork, *whole_fork) : ExpectSame(*split[1], *whole[1]);
        fork->zero_grad();
        split[1]->zero_grad();
        whole_fork->zero_grad();
        whole[1]->zero_grad();
      }
    }
  }
}

TEST(PipelinesSideBySide, AStageThatIsFrozenAndThenTrained) {
  std::vector<Sequential> whole = Stages(), split = Stages();
  Sequential& mine = split[Grid().stage];
  const auto ddp = std::make_shared<DistributedDataParallel<torch::nn::SequentialImpl>>(mine, Grid().data);
  Pipeline pipeline(ddp, Grid().pipeline, Options(PipelineSchedule::kOneForwardOneBackward));
  for (int step = 0; step < 4; ++step) {
    const bool trained = step % 2 == 1;
    for (auto* stages : {&whole, &split}) {
      for (auto& p : (*stages)[0]->parameters()) p.set_requires_grad(trained);
    }
    mine->zero_grad();
    for (auto& stage : whole) stage->zero_grad();
    torch::manual_seed(step);
    const at::Tensor x = at::randn({8 * NumReplicas(), 4}, at::kDouble), y = at::randint(3, {x.size(0)});
    pipeline.Step(x.narrow(0, 8 * Grid().replica, 8), y.narrow(0, 8 * Grid().replica, 8));
    CrossEntropy(whole[1]->forward(whole[0]->forward(x)), y).backward();
    if (trained || Grid().stage == 1) {
      ExpectSame(*mine, *whole[Grid().stage]);
    } else {
      for (const auto& p : mine->parameters()) EXPECT_FALSE(p.grad().defined());
    }
  }
}

}  // namespace
}  // namespace lockstep
