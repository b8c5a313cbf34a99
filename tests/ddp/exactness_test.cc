// Gradients against c10d::Reducer's, bit for bit, and against one process on the whole batch.

#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/nn/functional/loss.h>
#include <torch/optim/sgd.h>
#include <torch/utils.h>

#include <cstdlib>

#include "lockstep/comm/process_group.h"
#include "lockstep/ddp/after_backward_reducer.h"
#include "lockstep/ddp/all_reduce_hook.h"
#include "lockstep/ddp/distributed_data_parallel.h"
#include "lockstep/ddp/torch_reducer.h"
#include "lockstep/models/conv_net.h"
#include "lockstep/models/resnet.h"
#include "lockstep/nn/batch_norm.h"
#include "lockstep/nn/channels_last.h"
#include "test_models.h"

namespace lockstep {
namespace {

using torch::nn::functional::cross_entropy;

const ProcessGroupPtr& Group() {
  static const ProcessGroupPtr group = InitProcessGroup().value();
  return group;
}
const ProcessGroupPtr& GlooGroup() {
  static const ProcessGroupPtr group = [] {
    std::vector<int> all;
    for (int rank = 0; rank < GetWorldSize(Group()); ++rank) all.push_back(rank);
    ProcessGroupOptions options;
    options.backend = "gloo";
    return NewSubGroup(Group(), all, options).value();
  }();
  return group;
}

/// 500 in full; fewer where a step takes a tenth of a second.
int Steps(int reduced) { return std::getenv("LOCKSTEP_EXHAUSTIVE") == nullptr ? reduced : reduced == 2 ? 50 : 500; }

/// Makes a model from one seed, the same on all ranks.
template <typename Make>
auto Seeded(Make make) {
  torch::manual_seed(1206);
  return make();
}

struct Case {
  const char* name;
  std::vector<int64_t> input;  ///< Of one sample.
  int64_t classes = 3;
  int steps = 20;
};

/// The options that change how gradients are reduced, and not what comes out.
struct Option {
  const char* name;
  std::function<void(DistributedDataParallelOptions&)> set;
};
std::vector<Option> Options() {
  return {
      {"defaults", [](auto&) {}},
      {"small buckets",
       [](auto& o) {
         o.reducer.bucket_cap_bytes = 1000;
         o.reducer.first_bucket_cap_bytes = 100;
       }},
      {"not rebuilt", [](auto& o) { o.reducer.rebuild_buckets = false; }},
      {"find_unused_parameters", [](auto& o) { o.reducer.find_unused_parameters = true; }},
      {"static_graph", [](auto& o) { o.reducer.static_graph = true; }},
      {"an all-reduce hook", [](auto& o) { o.reducer.hook = std::make_shared<AllReduceHook>(Group()); }},
      {"AfterBackwardReducer",
       [](auto& o) {
         o.make_reducer = [](auto parameters, const auto& group) {
           return std::make_unique<AfterBackwardReducer>(std::move(parameters), group);
         };
       }},
  };
}

template <typename Make>
void ExpectTorchReducersGradients(Make make, const Case& c, const ProcessGroupPtr& group, bool channels_last = false) {
  const int rank = GetRank(group);
  for (const Option& option : Options()) {
    // Gloo's order of addition depends on where in a bucket a number lies, so that only equal buckets give equal bits.
    const bool same_buckets = option.name == std::string("defaults") || option.name == std::string("small buckets");
    if (!same_buckets && (group == GlooGroup() || c.steps == 2)) continue;
    const std::string where = std::string(c.name) + ", " + option.name;
    auto ours = Seeded(make), theirs = Seeded(make);
    if (channels_last) {
      nn::ToChannelsLast(*ours);
      nn::ToChannelsLast(*theirs);
    }
    DistributedDataParallelOptions options, peer;
    option.set(options);
    peer.make_reducer = [&options](auto parameters, const auto& g) {
      TorchReducerOptions torch_options;
      torch_options.bucket_cap_bytes = options.reducer.bucket_cap_bytes;
      torch_options.first_bucket_cap_bytes = options.reducer.first_bucket_cap_bytes;
      return std::make_unique<TorchReducer>(std::move(parameters), g, torch_options);
    };
    DistributedDataParallel ddp(ours, group, options), reference(theirs, group, peer);
    torch::optim::SGD a(ddp.parameters(), torch::optim::SGDOptions(0.02).momentum(0.9));
    torch::optim::SGD b(reference.parameters(), torch::optim::SGDOptions(0.02).momentum(0.9));
    torch::manual_seed(77 + rank);
    for (int step = 0; step < Steps(c.steps); ++step) {
      std::vector<int64_t> shape = c.input;
      shape.insert(shape.begin(), 4);
      const at::Tensor x = at::randn(shape), y = at::randint(c.classes, {4});
      a.zero_grad(step % 3 != 0);  // both habits
      b.zero_grad();
      cross_entropy(ddp.forward(x), y).backward();
      cross_entropy(reference.forward(x), y).backward();
      for (const auto& item : ddp.named_parameters()) {
        const at::Tensor expected = reference.named_parameters()[item.key()].grad();
        ASSERT_TRUE(item.value().grad().equal(expected))
            << where << ", step " << step << ", " << item.key() << ": "
            << (item.value().grad() - expected).abs().max().template item<double>();
        ASSERT_EQ(item.value().grad().strides(), item.value().strides()) << where << ", " << item.key();
      }
      a.step();
      b.step();
    }
    ddp.CheckParametersEqual();
  }
}

template <typename Make>
void ExpectOneProcess(Make make, const Case& c) {
  const int rank = GetRank(Group()), world = GetWorldSize(Group());
  auto single = Seeded(make), model = Seeded(make);
  single->to(at::kDouble);
  model->to(at::kDouble);
  ASSERT_TRUE(nn::ConvertSyncBatchNorm(*model, Group()).ok());
  DistributedDataParallel ddp(model, Group());
  torch::optim::SGD a(ddp.parameters(), torch::optim::SGDOptions(0.05));
  torch::optim::SGD b(single->parameters(), torch::optim::SGDOptions(0.05));
  torch::manual_seed(99);  // the same data on all ranks
  for (int step = 0; step < 5; ++step) {
    std::vector<int64_t> shape = c.input;
    shape.insert(shape.begin(), 4 * world);
    const at::Tensor x = at::randn(shape, at::kDouble), y = at::randint(c.classes, {4 * world});
    a.zero_grad();
    b.zero_grad();
    cross_entropy(ddp.forward(x.narrow(0, rank * 4, 4)), y.narrow(0, rank * 4, 4)).backward();
    cross_entropy(single->forward(x), y).backward();
    for (const auto& item : single->named_parameters()) {
      const at::Tensor grad = ddp.named_parameters()[item.key()].grad(), expected = item.value().grad();
      ASSERT_TRUE(at::allclose(grad, expected, 1e-6, 1e-6 * expected.abs().max().template item<double>() + 1e-12))
          << c.name << ", step " << step << ", " << item.key() << ": "
          << (grad - expected).abs().max().template item<double>();
    }
    a.step();
    b.step();
  }
}

template <typename Make>
void ExpectExact(Make make, const Case& c) {
  ExpectTorchReducersGradients(make, c, Group());
  ExpectOneProcess(make, c);
}

TEST(Exactness, Mlp) {
  ExpectExact([] { return test_models::Mlp(); }, {"MLP", {6}});
}
TEST(Exactness, MlpOnGloo) {
  ExpectTorchReducersGradients([] { return test_models::Mlp(); }, {"MLP on Gloo", {6}}, GlooGroup());
}
TEST(Exactness, SharedWeights) {
  ExpectExact([] { return test_models::Shared(); }, {"shared weights", {6}});
}
TEST(Exactness, Lstm) {
  ExpectExact([] { return test_models::Recurrent(); }, {"LSTM", {18}});
}
TEST(Exactness, ConvNet) {
  ExpectExact([] { return models::ConvNet(); }, {"ConvNet", {1, 28, 28}, 10, 6});
}
TEST(Exactness, ConvNetChannelsLast) {
  ExpectTorchReducersGradients([] { return models::ConvNet(); }, {"ConvNet, channels-last", {1, 28, 28}, 10, 6},
                               Group(),
                               /*channels_last=*/true);
}
TEST(Exactness, ResNet18) {
  ExpectExact([] { return models::ResNet18(10); }, {"ResNet-18", {3, 32, 32}, 10, 2});
}

TEST(Exactness, UnusedBranches) {
  const int rank = GetRank(Group());
  const auto make = [] { return test_models::Branches(); };
  for (const bool same_everywhere : {true, false}) {
    auto ours = Seeded(make), theirs = Seeded(make);
    DistributedDataParallelOptions options, peer;
    options.reducer.find_unused_parameters = true;
    options.reducer.bucket_cap_bytes = options.reducer.first_bucket_cap_bytes = 100;
    peer.make_reducer = [](auto parameters, const auto& g) {
      TorchReducerOptions torch_options;
      torch_options.find_unused_parameters = true;
      return std::make_unique<TorchReducer>(std::move(parameters), g, torch_options);
    };
    DistributedDataParallel ddp(ours, Group(), options), reference(theirs, Group(), peer);
    torch::optim::SGD a(ddp.parameters(), torch::optim::SGDOptions(0.1));
    torch::optim::SGD b(reference.parameters(), torch::optim::SGDOptions(0.1));
    torch::manual_seed(same_everywhere ? 5 : 5 + rank);
    for (int step = 0; step < Steps(40); ++step) {
      const at::Tensor x = at::randn({4, 6});
      const bool left = at::randint(2, {1}).item<int64_t>() == 0;
      if (step % 4 != 0) {  // sometimes the old gradients stay
        a.zero_grad(step % 2 == 0);
        b.zero_grad(step % 2 == 0);
      }
      ddp.forward(x, left).square().mean().backward();
      reference.forward(x, left).square().mean().backward();
      for (const auto& item : ddp.named_parameters()) {
        const at::Tensor grad = item.value().grad(), expected = reference.named_parameters()[item.key()].grad();
        ASSERT_EQ(grad.defined(), expected.defined()) << step << ", " << item.key();
        if (grad.defined()) {
          ASSERT_TRUE(grad.equal(expected)) << step << ", " << item.key();
        }
      }
      a.step();
      b.step();
    }
  }
}

}  // namespace
}  // namespace lockstep
