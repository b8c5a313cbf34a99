#include "lockstep/comm/join.h"

#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/sgd.h>
#include <torch/utils.h>

#include "lockstep/comm/process_group.h"
#include "lockstep/ddp/distributed_data_parallel.h"
#include "lockstep/nn/batch_norm.h"
#include "test_models.h"

namespace lockstep {
namespace {

const ProcessGroupPtr& Group() {
  static const ProcessGroupPtr group = InitProcessGroup().value();
  return group;
}
int Rank() { return GetRank(Group()); }
int World() { return GetWorldSize(Group()); }

/// Rank r has r + 2 batches; the last rank goes on longest.
int Batches(int rank) { return rank + 2; }
at::Tensor Batch(int rank, int step) {
  return at::sin(at::arange(12., at::kDouble).view({2, 6}) + rank * 3 + step * 7);
}

TEST(Join, RanksThatHaveRunOutCountForNothing) {
  for (const bool by_initial : {true, false}) {
    torch::manual_seed(1);
    test_models::Mlp model, single;
    model->to(at::kDouble);
    single->to(at::kDouble);
    DistributedDataParallel ddp(model, Group());
    for (size_t i = 0; i < model->parameters().size(); ++i)
      single->parameters()[i].set_data(model->parameters()[i].clone());
    torch::optim::SGD optimizer(ddp.parameters(), torch::optim::SGDOptions(0.1));
    torch::optim::SGD reference(single->parameters(), torch::optim::SGDOptions(0.1));
    JoinOptions options;
    options.divide_by_initial_world_size = by_initial;
    Join join({&ddp}, Group(), options);
    int step = 0, shadows = 0;
    while (true) {
      const Join::Step next = join.Next(step < Batches(Rank()));
      if (next == Join::Step::kEnd) break;
      shadows += next == Join::Step::kShadow;
      optimizer.zero_grad();
      // A shadow's batch may be anything, also one whose loss is not a number.
      const at::Tensor x = next == Join::Step::kBatch ? Batch(Rank(), step) : at::full({2, 6}, NAN, at::kDouble);
      ddp.forward(x).square().sum().backward();
      reference.zero_grad();
      at::Tensor loss = at::zeros({}, at::kDouble);
      int active = 0;
      for (int rank = 0; rank < World(); ++rank) {
        if (step >= Batches(rank)) continue;
        loss = loss + single->forward(Batch(rank, step)).square().sum();
        ++active;
      }
      (loss / (by_initial ? World() : active)).backward();
      for (size_t i = 0; i < model->parameters().size(); ++i) {
        EXPECT_TRUE(at::allclose(model->parameters()[i].grad(), single->parameters()[i].grad(), 1e-9, 1e-12)) << step;
      }
      optimizer.step();
      reference.step();
      ++step;
    }
    EXPECT_EQ(step, Batches(World() - 1));
    EXPECT_EQ(shadows, World() - 1 - Rank());
    ddp.CheckParametersEqual();
    // Afterwards everything is as before.
    ddp.forward(Batch(0, 0)).sum().backward();
  }
}

TEST(Join, WindowsOfAccumulationKeepWhatCounted) {
  torch::manual_seed(2);
  test_models::Mlp model;
  model->to(at::kDouble);
  DistributedDataParallel ddp(model, Group());
  Join join({&ddp}, Group());
  int micro = 0;
  model->zero_grad();
  std::vector<at::Tensor> expected;
  while (true) {
    const Join::Step next = join.Next(micro < Batches(Rank()));
    if (next == Join::Step::kEnd) break;
    const bool last = micro % 3 == 2;
    const at::Tensor x = Batch(Rank(), micro);
    if (last) {
      ddp.forward(x).square().sum().backward();
    } else {
      const decltype(ddp)::NoSync no_sync(ddp);
      ddp.forward(x).square().sum().backward();
    }
    ++micro;
    if (!last) continue;
    at::Tensor loss = at::zeros({}, at::kDouble);
    for (int rank = 0; rank < World(); ++rank) {
      for (int m = micro - 3; m < std::min(micro, Batches(rank)); ++m) {
        loss = loss + model->forward(Batch(rank, m)).square().sum();
      }
    }
    const auto grads = torch::autograd::grad({loss / World()}, model->parameters());
    for (size_t i = 0; i < grads.size(); ++i) {
      EXPECT_TRUE(at::allclose(model->parameters()[i].grad(), grads[i], 1e-9, 1e-12)) << micro << " " << i;
    }
    model->zero_grad();
  }
}

TEST(Join, BatchNormSeesOnlyWhatCounts) {
  for (const bool synchronized : {true, false}) {
    torch::manual_seed(3);
    nn::BatchNorm1d norm(6), single(6);
    torch::nn::Sequential model(torch::nn::Linear(6, 6), norm, torch::nn::Linear(6, 2));
    model->to(at::kDouble);
    single->to(at::kDouble);
    if (synchronized) {
      ASSERT_TRUE(nn::ConvertSyncBatchNorm(*model, Group()).ok());
    }
    DistributedDataParallelOptions options;
    options.broadcast_buffers = false;
    DistributedDataParallel ddp(model, Group(), options);
    std::vector<Joinable*> joinables = nn::BatchNormJoinables(*model);
    ASSERT_EQ(joinables.size(), 1u);
    joinables.push_back(&ddp);
    Join join(joinables, Group());
    for (int step = 0;; ++step) {
      const Join::Step next = join.Next(step < Batches(Rank()));
      if (next == Join::Step::kEnd) break;
      const at::Tensor x = next == Join::Step::kBatch ? Batch(Rank(), step) : at::full({2, 6}, 1e6, at::kDouble);
      {
        const at::NoGradGuard no_grad;
        const auto first = model->ptr<torch::nn::LinearImpl>(0);
        std::vector<at::Tensor> counted;
        for (int rank = 0; rank < World(); ++rank) {
          if (step < Batches(rank) && (synchronized || rank == Rank()))
            counted.push_back(first->forward(Batch(rank, step)));
        }
        if (!counted.empty()) single->forward(at::cat(counted));
      }
      model->zero_grad();
      ddp.forward(x).square().sum().backward();
      for (const auto& parameter : model->parameters()) {
        const at::NoGradGuard no_grad;
        EXPECT_TRUE(parameter.grad().isfinite().all().item<bool>());
        parameter.sub_(parameter.grad() * 0.01);
      }
    }
    EXPECT_TRUE(at::allclose(norm->running_mean, single->running_mean, 1e-9, 1e-9)) << synchronized;
    EXPECT_TRUE(at::allclose(norm->running_var, single->running_var, 1e-9, 1e-9)) << synchronized;
    ddp.CheckParametersEqual();
  }
}

TEST(Join, BuffersComeFromARankThatHadBatchesToTheEnd) {
  nn::BatchNorm1d model(6);
  model->to(at::kDouble);
  DistributedDataParallel ddp(model, Group());
  std::vector<Joinable*> joinables = nn::BatchNormJoinables(*model);
  joinables.push_back(&ddp);
  Join join(joinables, Group());
  for (int step = 0; join.Next(step < Batches(Rank())) != Join::Step::kEnd; ++step) {
    ddp.forward(Batch(Rank(), step)).sum().backward();
  }
  for (const auto& other : AllGather(model->running_mean, Group())) EXPECT_TRUE(other.equal(model->running_mean));
  EXPECT_EQ(model->num_batches_tracked.item<int64_t>(), Batches(World() - 1));
}

TEST(Join, StopsWithTheFirst) {
  class Counter : public Joinable {
   public:
    void SetJoinState(const JoinState* state) override { state != nullptr ? ++steps : ++ends; }
    void OnJoinEnd(const JoinState& last) override { last_ranks = last.ranks_with_batch; }
    int steps = 0, ends = 0, last_ranks = 0;
  } counter;
  {
    JoinOptions options;
    options.stop_with_first = true;
    Join join({&counter}, Group(), options);
    int step = 0;
    for (; join.Next(step < Batches(Rank())) != Join::Step::kEnd; ++step) {
    }
    EXPECT_EQ(step, Batches(0));
  }
  EXPECT_EQ(counter.steps, Batches(0));
  EXPECT_EQ(counter.last_ranks, World());
  EXPECT_GE(counter.ends, 1);
}

TEST(Join, ANullGroupEndsWithItsBatches) {
  Join join({}, nullptr);
  EXPECT_EQ(join.Next(true), Join::Step::kBatch);
  EXPECT_EQ(join.Next(false), Join::Step::kEnd);
}

}  // namespace
}  // namespace lockstep
