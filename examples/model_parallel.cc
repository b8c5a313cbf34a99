// Model parallel, the toy: a linear layer 10→10 on the first device, ReLU, a linear layer 10→5 on the second.
//   ./bazelw run //examples:model_parallel               # one process, on two GPUs, or on the CPU where there are none
//   ./bazelw build //launch:lockstep_run //examples:model_parallel
//   bazel-bin/launch/lockstep_run --standalone --nproc_per_node=2 bazel-bin/examples/model_parallel    # inside DDP
// Rank r of a host takes devices 2r and 2r + 1.

#include <ATen/Context.h>
#include <ATen/Functions.h>
#include <torch/nn/functional/loss.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/sgd.h>
#include <torch/utils.h>

#include <cstdio>
#include <string>

#include "lockstep/comm/environment.h"
#include "lockstep/ddp/distributed_data_parallel.h"
#include "lockstep/launch/rank_main.h"
#include "lockstep/parallel/on_device.h"

using namespace lockstep;  // NOLINT: an example

struct ToyImpl : torch::nn::Module {
  using Part = OnDevice<torch::nn::LinearImpl>;
  ToyImpl(at::Device first, at::Device second)
      : net1(register_module("net1", std::make_shared<Part>(torch::nn::Linear(10, 10), first))),
        net2(register_module("net2", std::make_shared<Part>(torch::nn::Linear(10, 5), second))) {}
  at::Tensor forward(const at::Tensor& x) { return net2->forward(at::relu(net1->forward(x))); }
  std::shared_ptr<Part> net1, net2;
};

absl::Status Train(int local_rank, bool cuda, const ProcessGroupPtr& group) {
  const auto device = [&](int index) {
    return cuda ? at::Device(at::kCUDA, static_cast<at::DeviceIndex>(index)) : at::Device(at::kCPU);
  };
  torch::manual_seed(1206);
  const auto model = std::make_shared<ToyImpl>(device(2 * local_rank), device(2 * local_rank + 1));
  const at::Tensor rule = at::randn({10, 5});
  DistributedDataParallel<ToyImpl> ddp(model, group);  // of one rank: does nothing
  torch::optim::SGD optimizer(ddp.parameters(), torch::optim::SGDOptions(0.05));
  std::printf("rank %d: net1 on %s, net2 on %s\n", GetRank(group), model->net1->device().str().c_str(),
              model->net2->device().str().c_str());
  torch::manual_seed(1206 + GetRank(group));
  for (int step = 1; step <= 200; ++step) {
    const at::Tensor x = at::randn({20, 10}), target = x.matmul(rule);
    optimizer.zero_grad();
    const at::Tensor out = ddp.forward(x);  // on the second device
    at::Tensor loss = torch::nn::functional::mse_loss(out, target.to(out.device()));
    loss.backward();
    optimizer.step();
    if (step % 50 != 0) continue;
    at::Tensor mean = loss.detach();
    AllReduce(mean, group, c10d::ReduceOp::AVG);
    if (GetRank(group) == 0) std::printf("step %d: loss %.4f\n", step, mean.item<double>());
  }
  ddp.CheckParametersEqual();
  return absl::OkStatus();
}

int main() {
  const auto environment = ReadEnvironment();
  if (!environment.ok()) {
    std::fprintf(stderr, "error: %s\n", std::string(environment.status().message()).c_str());
    return 1;
  }
  const int gpus = at::hasCUDA() ? static_cast<int>(at::getNumGPUs()) : 0, wanted = 2 * environment->local_world_size;
  if (gpus > 0 && gpus < wanted) {
    std::fprintf(stderr, "error: %d GPUs are wanted, two for each rank of this host, and there are %d\n", wanted, gpus);
    return 1;
  }
  ProcessGroupOptions options;
  options.cuda = gpus > 0;
  return RankMain(options,
                  [&](const ProcessGroupPtr& group) { return Train(environment->local_rank, options.cuda, group); });
}
