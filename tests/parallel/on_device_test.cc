#include "lockstep/parallel/on_device.h"

#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/sgd.h>
#include <torch/utils.h>

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/comm/process_group.h"
#include "lockstep/ddp/distributed_data_parallel.h"

namespace lockstep {
namespace {

const ProcessGroupPtr& Group() {
  static const ProcessGroupPtr group = InitProcessGroup().value();
  return group;
}

/// 10→10 on one device, ReLU, 10→5 on another: here there is only one.
struct ToyImpl : torch::nn::Module {
  using Part = OnDevice<torch::nn::LinearImpl>;
  ToyImpl()
      : net1(register_module("net1", std::make_shared<Part>(torch::nn::Linear(10, 10), at::kCPU))),
        net2(register_module("net2", std::make_shared<Part>(torch::nn::Linear(10, 5), at::kCPU))) {}
  at::Tensor forward(const at::Tensor& x) { return net2->forward(at::relu(net1->forward(x))); }
  std::shared_ptr<Part> net1, net2;
};

TEST(OnDevice, TheToyTrainsAsTheUnwrappedOneAloneAndInDistributedDataParallel) {
  torch::manual_seed(1);
  torch::nn::Linear first(10, 10), second(10, 5);
  const auto toy = std::make_shared<ToyImpl>();
  {
    const at::NoGradGuard no_grad;
    toy->net1->module().weight.copy_(first->weight);
    toy->net1->module().bias.copy_(first->bias);
    toy->net2->module().weight.copy_(second->weight);
    toy->net2->module().bias.copy_(second->bias);
  }
  const int64_t rank = GetRank(Group()), world = GetWorldSize(Group()), share = 6;
  DistributedDataParallel<ToyImpl> ddp(toy, Group());  // of a world of one: alone
  torch::optim::SGD optimizer(ddp.parameters(), torch::optim::SGDOptions(0.1));
  torch::optim::SGD reference({first->weight, first->bias, second->weight, second->bias},
                              torch::optim::SGDOptions(0.1));
  for (int step = 0; step < 5; ++step) {
    const at::Tensor x = at::randn({share * world, 10}), y = at::randn({share * world, 5});
    optimizer.zero_grad();
    reference.zero_grad();
    at::mse_loss(ddp.forward(x.narrow(0, rank * share, share)), y.narrow(0, rank * share, share)).backward();
    at::mse_loss(second->forward(at::relu(first->forward(x))), y).backward();
    optimizer.step();
    reference.step();
  }
  const auto parameters = ddp.named_parameters();
  EXPECT_TRUE(at::allclose(parameters["net1.weight"], first->weight, 1e-5, 1e-6));
  EXPECT_TRUE(at::allclose(parameters["net2.bias"], second->bias, 1e-5, 1e-6));
}

TEST(OnDevice, NestedTensorsAreMovedAndTheRestIsPassedOn) {
  using Map = std::map<std::string, std::pair<at::Tensor, std::optional<at::Tensor>>>;
  struct Probe : torch::nn::Module {
    bool forward(const Map& map, int number, const at::Tensor& own, const std::vector<at::Tensor>& none) {
      EXPECT_EQ(number, 7);
      EXPECT_FALSE(none[0].defined());
      EXPECT_FALSE(map.at("b").second.has_value());
      EXPECT_EQ(own.scalar_type(), at::kLong);
      return own.is_meta() && map.at("a").first.is_meta() && map.at("a").second->is_meta() &&
             map.at("b").first.is_meta();
    }
  };
  OnDevice<Probe> part(std::make_shared<Probe>(), at::kMeta);  // a device that every build has
  const at::Tensor x = at::ones({2});
  EXPECT_TRUE(part.forward(Map{{"a", {x, x}}, {"b", {x, std::nullopt}}}, 7, at::ones({1}, at::kLong),
                           std::vector<at::Tensor>{at::Tensor()}));
}

TEST(OnDevice, TensorsThatAreThereAlreadyAreNotCopied) {
  struct Echo : torch::nn::Module {
    at::Tensor forward(const at::Tensor& x) { return x; }
  };
  OnDevice<Echo> part(std::make_shared<Echo>(), at::kCPU);
  const at::Tensor x = at::ones({2});
  EXPECT_TRUE(part.forward(x).is_same(x));
}

TEST(OnDevice, NamesHaveNoPrefixAndModesReachTheModule) {
  torch::nn::Sequential model(torch::nn::Linear(3, 4), torch::nn::BatchNorm1d(4));
  OnDevice<torch::nn::SequentialImpl> part(model, at::kCPU);
  EXPECT_EQ(part.named_parameters().keys(), model->named_parameters().keys());
  EXPECT_EQ(part.named_buffers().keys(), model->named_buffers().keys());
  EXPECT_TRUE(part.parameters()[0].is_same(model->parameters()[0]));
  part.eval();
  EXPECT_FALSE(model->ptr(1)->is_training());
  EXPECT_FALSE(part.is_training());
}

}  // namespace
}  // namespace lockstep
