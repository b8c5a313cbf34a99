// A scaler over ranks: an overflow on one skips the step on all, however the gradients come together.

#include <ATen/Functions.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/adam.h>
#include <torch/optim/sgd.h>
#include <torch/utils.h>

#include <limits>
#include <memory>
#include <string>

#include "lockstep/amp/grad_scaler.h"
#include "lockstep/amp/master_weight_optimizer.h"
#include "lockstep/amp/scaler_sync.h"
#include "lockstep/comm/collectives.h"
#include "lockstep/comm/join.h"
#include "lockstep/comm/process_group.h"
#include "lockstep/ddp/after_backward_reducer.h"
#include "lockstep/ddp/distributed_data_parallel.h"
#include "lockstep/ddp/power_sgd_hook.h"
#include "lockstep/ddp/sharded_optimizer.h"
#include "lockstep/optim/clip_gradients.h"

namespace lockstep {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();

const ProcessGroupPtr& Group() {
  static const ProcessGroupPtr group = InitProcessGroup().value();
  return group;
}
int Rank() { return GetRank(Group()); }
int World() { return GetWorldSize(Group()); }
bool IsLast() { return Rank() == World() - 1; }

GradScaler MakeScaler(bool with_group = true) {
  GradScalerOptions options;
  if (with_group) options.group = Group();
  return GradScaler(options);
}

/// A step that the last rank alone can't take: nobody takes it, and all are as before but for the scale.
void ExpectSkippedByAll(GradScaler& scaler, torch::optim::Optimizer& optimizer,
                        const std::vector<at::Tensor>& parameters) {
  std::vector<at::Tensor> before;
  for (const auto& parameter : parameters) before.push_back(parameter.detach().clone());
  EXPECT_FALSE(scaler.Step(optimizer));
  scaler.Update();
  EXPECT_EQ(scaler.scale(), 32768);
  CheckScalersEqual(scaler, Group());
  for (size_t i = 0; i < before.size(); ++i) EXPECT_TRUE(parameters[i].equal(before[i]));
}

struct Model {
  Model() {
    torch::manual_seed(1);
    layer = torch::nn::Linear(4, 3);
  }
  torch::nn::Linear layer{nullptr};
  const at::Tensor x = at::ones({2, 4});
  const float factor = IsLast() ? kInf : 1.f;
};

TEST(ScalerRanks, AveragedGradients) {
  Model m;
  DistributedDataParallel ddp(m.layer, Group());
  torch::optim::SGD optimizer(ddp.parameters(), torch::optim::SGDOptions(1.));
  GradScaler scaler = MakeScaler();
  (scaler.Scale(ddp.forward(m.x).sum()) * m.factor).backward();
  ExpectSkippedByAll(scaler, optimizer, ddp.parameters());
}

/// x · weight + bias, times a scale.
struct ScaledImpl : torch::nn::Module {
  ScaledImpl()
      : weight(register_parameter("weight", at::ones({4, 3}))),
        bias(register_parameter("bias", at::ones({3}))),
        scale(register_parameter("scale", at::ones({3}))) {}
  at::Tensor forward(const at::Tensor& x) { return (x.matmul(weight) + bias) * scale; }
  at::Tensor weight, bias, scale;
};

TEST(ScalerRanks, ParametersThatAreNotAveraged) {
  for (const std::string spoiled : {"ignored", "outside", "frozen at first"}) {
    const auto model = std::make_shared<ScaledImpl>();
    at::Tensor outside = at::ones({3}).requires_grad_();  // never in the wrapper
    DistributedDataParallelOptions options;
    options.ignored = {"bias"};
    options.make_reducer = [](auto parameters, const auto& group) {  // this one doesn't notice what is unfrozen
      return std::make_unique<AfterBackwardReducer>(std::move(parameters), group);
    };
    model->scale.set_requires_grad(false);
    DistributedDataParallel ddp(model, Group(), options);
    model->scale.set_requires_grad(true);
    torch::optim::SGD optimizer({model->weight, model->bias, model->scale, outside}, torch::optim::SGDOptions(1.));
    GradScaler scaler = MakeScaler();
    scaler.Scale((ddp.forward(at::ones({2, 4})) * outside).sum()).backward();
    at::Tensor& victim = spoiled == "ignored" ? model->bias : spoiled == "outside" ? outside : model->scale;
    ASSERT_TRUE(victim.grad().defined());
    if (IsLast()) victim.mutable_grad().fill_(kInf);
    ExpectSkippedByAll(scaler, optimizer, {model->weight, model->bias, model->scale, outside});
  }
}

TEST(ScalerRanks, ARankThatHasScaledNothingYet) {
  Model m;
  torch::optim::SGD optimizer(m.layer->parameters(), torch::optim::SGDOptions(1.));
  GradScaler scaler = MakeScaler();
  if (IsLast()) (scaler.Scale(m.layer->forward(m.x).sum()) * kInf).backward();
  ExpectSkippedByAll(scaler, optimizer, m.layer->parameters());
}

TEST(ScalerRanks, GradientsThatWereOnlyAccumulated) {
  Model m;
  DistributedDataParallel ddp(m.layer, Group());
  torch::optim::SGD optimizer(ddp.parameters(), torch::optim::SGDOptions(1.));
  GradScaler scaler = MakeScaler();
  const DistributedDataParallelBase::NoSync no_sync(ddp);
  (scaler.Scale(ddp.forward(m.x).sum()) * m.factor).backward();
  ExpectSkippedByAll(scaler, optimizer, ddp.parameters());
}

TEST(ScalerRanks, ARankWithoutAnyGradient) {
  Model m;
  torch::optim::SGD optimizer(m.layer->parameters(), torch::optim::SGDOptions(1.));
  GradScaler scaler = MakeScaler();
  at::Tensor loss = scaler.Scale(m.layer->forward(m.x).sum());
  if (IsLast()) (loss * kInf).backward();
  ExpectSkippedByAll(scaler, optimizer, m.layer->parameters());
}

TEST(ScalerRanks, RanksThatHaveRunOut) {
  Model m;
  DistributedDataParallel ddp(m.layer, Group());
  torch::optim::SGD optimizer(ddp.parameters(), torch::optim::SGDOptions(1e-3));
  GradScaler scaler = MakeScaler();
  Join join({&ddp}, Group());
  const int mine = 2 + Rank(), longest = 1 + World();
  int step = 0, skipped = 0;
  for (;; ++step) {
    const Join::Step next = join.Next(step < mine);
    if (next == Join::Step::kEnd) break;
    optimizer.zero_grad();
    at::Tensor loss = scaler.Scale(ddp.forward(m.x).sum());
    if (step == longest - 1 && IsLast()) loss = loss * kInf;
    if (next == Join::Step::kShadow) loss = loss * std::nan("");  // counts for nothing
    loss.backward();
    skipped += scaler.Step(optimizer) ? 0 : 1;
    scaler.Update();
    CheckScalersEqual(scaler, Group());
  }
  EXPECT_EQ(step, longest);
  EXPECT_EQ(skipped, 1);
  ddp.CheckParametersEqual();
}

template <typename Optimizer>
void ExpectShards(const torch::nn::Linear& layer) {
  ShardedReducer* reducer = nullptr;
  DistributedDataParallelOptions options;
  options.make_reducer = [&](auto parameters, const auto& group) {
    auto made = std::make_unique<ShardedReducer>(std::move(parameters), group);
    reducer = made.get();
    return made;
  };
  DistributedDataParallel ddp(layer, Group(), options);
  ShardedOptimizer<Optimizer> optimizer(*reducer, torch::optim::AdamOptions(1e-2));
  GradScaler scaler = MakeScaler();
  // Only the first weight's gradient overflows, which is in one rank's shard.
  const auto backward = [&](float factor) {
    optimizer.zero_grad();
    const at::Tensor x = at::zeros({2, 4}, layer->weight.options().requires_grad(false));
    x.fill_(1).select(1, 0).fill_(factor);
    scaler.Scale(ddp.forward(x).to(at::kFloat).select(1, 0).sum()).backward();
  };
  backward(kInf);
  ExpectSkippedByAll(scaler, optimizer, ddp.parameters());
  const at::Tensor before = layer->weight.detach().clone();
  backward(1);
  scaler.Unscale(optimizer);
  // Gradients of the first output's row and bias are 2, the others 0.
  GradientNormOptions norm;
  norm.shard_group = reducer->shard_group();
  const auto parameters = AllParameters(optimizer);
  EXPECT_NEAR(GradientNorm(parameters, norm).template item<double>(), std::sqrt(5 * 4.), 1e-3);
  norm.norm_type = 1;
  EXPECT_NEAR(GradientNorm(parameters, norm).template item<double>(), 10, 1e-3);
  norm.norm_type = kInf;
  EXPECT_NEAR(GradientNorm(parameters, norm).template item<double>(), 2, 1e-3);
  norm.norm_type = 2;
  EXPECT_NEAR(ClipGradientNorm(parameters, 1, norm).template item<double>(), std::sqrt(5 * 4.), 1e-3);
  EXPECT_NEAR(GradientNorm(parameters, norm).template item<double>(), 1, 1e-3);
  EXPECT_TRUE(scaler.Step(optimizer));
  scaler.Update();
  EXPECT_FALSE(layer->weight.equal(before));
  ddp.CheckParametersEqual();
}

TEST(ScalerRanks, Shards) { ExpectShards<torch::optim::Adam>(Model().layer); }

TEST(ScalerRanks, ShardsOfMasterWeights) {
  torch::nn::Linear layer = Model().layer;
  layer->to(at::kBFloat16);
  ExpectShards<MasterWeightOptimizer<torch::optim::Adam>>(layer);
}

TEST(ScalerRanks, ANaNOfOneShardIsTheNormOfAll) {
  at::Tensor p = at::ones({2}).requires_grad_();
  p.mutable_grad() = at::full({2}, IsLast() ? std::nanf("") : 1.f);
  for (const double type : {1., 2., static_cast<double>(kInf)}) {
    EXPECT_TRUE(GradientNorm({p}, {type, Group()}).isnan().item<bool>()) << type;
  }
}

TEST(ScalerRanks, AnUpdateOfWhatWasOnlyUnscaledIsAgreedToo) {
  Model m;
  torch::optim::SGD one({m.layer->weight}, torch::optim::SGDOptions(1.)),
      other({m.layer->bias}, torch::optim::SGDOptions(1.));
  GradScaler scaler = MakeScaler();
  scaler.Scale(m.layer->forward(m.x).sum()).backward();
  if (IsLast()) m.layer->bias.mutable_grad().fill_(kInf);
  EXPECT_TRUE(scaler.Step(one)) << "each optimizer for itself";
  scaler.Unscale(other);
  scaler.Update();
  EXPECT_EQ(scaler.scale(), 32768);
  CheckScalersEqual(scaler, Group());
}

TEST(ScalerRanks, ANormThatIsNotFiniteOnOneRankSkipsTheStepOnAll) {
  Model m;
  torch::optim::SGD optimizer(m.layer->parameters(), torch::optim::SGDOptions(1.));
  GradScaler scaler = MakeScaler();
  scaler.Scale(m.layer->forward(m.x).sum()).backward();
  scaler.Unscale(optimizer);
  scaler.AddFoundInf(optimizer, at::full({}, IsLast()));
  ExpectSkippedByAll(scaler, optimizer, m.layer->parameters());
}

TEST(ScalerRanks, ScalesThatAreNoFloatsAreEqualBeforeAndAfterTheFirstUse) {
  GradScalerOptions options;
  options.init_scale = 1000.1;
  options.group = Group();
  GradScaler scaler(options);
  if (IsLast()) scaler.Scale(at::ones({}));
  CheckScalersEqual(scaler, Group());
}

TEST(ScalerRanks, MasterWeightsThatAreFinerThanTheModelSurviveWrapping) {
  torch::manual_seed(1);
  torch::nn::Linear layer(3, 1);
  layer->to(at::kBFloat16);
  MasterWeightOptimizer<torch::optim::SGD> optimizer(layer->parameters(), torch::optim::SGDOptions(1e-3));
  const auto step = [&](auto&& forward) {
    optimizer.zero_grad();
    forward(at::ones({2, 3}, at::kBFloat16)).to(at::kFloat).sum().backward();
    optimizer.step();
  };
  for (int i = 0; i < 3; ++i) step([&](const at::Tensor& x) { return layer->forward(x); });
  const at::Tensor fine = optimizer.copies()[0].clone();
  DistributedDataParallel ddp(layer, Group());  // broadcasts what is equal already
  step([&](const at::Tensor& x) { return ddp.forward(x); });
  EXPECT_NEAR((fine - optimizer.copies()[0])[0][0].item<float>(), 2e-3, 1e-5);
  for (int i = 0; i < 20; ++i) step([&](const at::Tensor& x) { return ddp.forward(x); });
  ddp.CheckParametersEqual();
}

TEST(ScalerRanks, MasterWeightsMadeBeforeTheWrapperFollowItsBroadcast) {
  torch::manual_seed(Rank());
  torch::nn::Linear layer(3, 1);
  layer->to(at::kBFloat16);
  MasterWeightOptimizer<torch::optim::SGD> optimizer(layer->parameters(), torch::optim::SGDOptions(1e-2));
  DistributedDataParallel ddp(layer, Group());
  for (int i = 0; i < 3; ++i) {
    ddp.forward(at::ones({2, 3}, at::kBFloat16)).to(at::kFloat).sum().backward();
    optimizer.step();
  }
  ddp.CheckParametersEqual();
}

TEST(ScalerRanks, AnOverflowLeavesPowerSgdsMemoryAlone) {
  for (const bool batched : {false, true}) {
    torch::manual_seed(1);
    torch::nn::Linear layer(16, 16);
    DistributedDataParallelOptions options;
    PowerSgdOptions compression;
    compression.rank = 2;
    compression.start_step = 0;
    compression.batched = batched;
    std::vector<NamedParameter> named;
    for (const auto& item : layer->named_parameters()) named.push_back({item.key(), item.value()});
    options.reducer.hook = std::make_shared<PowerSgdHook>(named, Group(), compression);
    DistributedDataParallel ddp(layer, Group(), options);
    torch::optim::SGD optimizer(ddp.parameters(), torch::optim::SGDOptions(1e-3));
    GradScaler scaler = MakeScaler();
    std::string taken;
    for (int i = 0; i < 8; ++i) {
      optimizer.zero_grad();
      at::Tensor loss = scaler.Scale(ddp.forward(at::randn({4, 16})).square().sum());
      if (i == 3 && IsLast()) loss = loss * kInf;
      loss.backward();
      taken += scaler.Step(optimizer) ? 'y' : 'n';
      scaler.Update();
    }
    EXPECT_EQ(taken, "yyynyyyy") << "batched: " << batched;
  }
}

TEST(ScalerRanks, WithoutAGroupScalesDriftApartAndTheCheckSaysSo) {
  if (World() == 1) return;
  Model m;
  torch::optim::SGD optimizer(m.layer->parameters(), torch::optim::SGDOptions(1.));
  GradScaler scaler = MakeScaler(/*with_group=*/false);
  (scaler.Scale(m.layer->forward(m.x).sum()) * m.factor).backward();
  EXPECT_EQ(scaler.Step(optimizer), !IsLast());
  scaler.Update();
  try {
    CheckScalersEqual(scaler, Group());
    ADD_FAILURE() << "no error";
  } catch (const c10::Error& e) {
    EXPECT_NE(std::string(e.what()).find("rank " + std::to_string(World() - 1) + " has"), std::string::npos)
        << e.what();
    EXPECT_NE(std::string(e.what()).find("GradScalerOptions::group"), std::string::npos) << e.what();
  }
}

}  // namespace
}  // namespace lockstep
