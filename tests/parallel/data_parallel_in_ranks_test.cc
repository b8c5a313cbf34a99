#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>
#include <gtest/gtest.h>
#include <torch/nn/functional/loss.h>
#include <torch/optim/sgd.h>
#include <torch/utils.h>

#include <memory>
#include <vector>

#include "lockstep/comm/process_group.h"
#include "lockstep/ddp/distributed_data_parallel.h"
#include "lockstep/parallel/data_parallel.h"
#include "tests/ddp/test_models.h"

namespace lockstep {
namespace {

using test_models::BranchesImpl;
using torch::nn::functional::cross_entropy;

/// Several processes, each with several devices; in every step a branch of the model gets no gradient.
TEST(DataParallel, InsideDistributedDataParallelGradientsEqualOneProcess) {
  const ProcessGroupPtr group = InitProcessGroup().value();
  const int64_t rank = GetRank(group), world = GetWorldSize(group), share = 5;
  torch::manual_seed(1);
  const auto single = std::make_shared<BranchesImpl>();
  torch::manual_seed(1);
  const auto model = std::make_shared<BranchesImpl>();
  single->to(at::kDouble);
  model->to(at::kDouble);
  using Parallel = DataParallel<BranchesImpl>;
  const auto parallel = std::make_shared<Parallel>(model, std::vector<at::Device>(2, at::Device(at::kCPU)),
                                                   [](at::Device) { return std::make_shared<BranchesImpl>(); });
  DistributedDataParallelOptions options;
  options.reducer.find_unused_parameters = true;
  DistributedDataParallel<Parallel> ddp(parallel, group, options);
  torch::optim::SGD optimizer(ddp.parameters(), torch::optim::SGDOptions(0.1));
  torch::optim::SGD reference(single->parameters(), torch::optim::SGDOptions(0.1));
  for (int step = 0; step < 6; ++step) {
    const bool to_left = step % 3 != 0;
    const at::Tensor x = at::randn({share * world, 6}, at::kDouble), y = at::randint(3, {share * world});
    optimizer.zero_grad();
    reference.zero_grad();
    cross_entropy(ddp.forward(x.narrow(0, rank * share, share), to_left), y.narrow(0, rank * share, share)).backward();
    cross_entropy(single->forward(x, to_left), y).backward();
    for (const auto& item : single->named_parameters()) {
      const at::Tensor& grad = ddp.named_parameters()[item.key()].grad();
      ASSERT_EQ(grad.defined(), item.value().grad().defined()) << item.key();
      if (grad.defined()) {
        EXPECT_TRUE(at::allclose(grad, item.value().grad(), 1e-6, 1e-12)) << item.key();
      }
    }
    optimizer.step();
    reference.step();
  }
}

}  // namespace
}  // namespace lockstep
