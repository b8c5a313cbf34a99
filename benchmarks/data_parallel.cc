// DataParallel against a step that clones the module each time, as LibTorch's own data_parallel does, on CPU replicas.
//
//   ./bazelw run //benchmarks:data_parallel [-- --blocks=7]
//
// The sides take turns in blocks; medians over the blocks. Two replicas and two threads on both sides: one for each
// replica in forward.

#include <ATen/Functions.h>
#include <ATen/Parallel.h>
#include <torch/nn/cloneable.h>
#include <torch/nn/functional/loss.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/parallel/data_parallel.h>
#include <torch/optim/sgd.h>
#include <torch/utils.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "lockstep/base/malloc.h"
#include "lockstep/models/conv_net.h"
#include "lockstep/parallel/data_parallel.h"

namespace {

using Clock = std::chrono::steady_clock;

constexpr size_t kReplicas = 2;

/// The net of the toy run: 20 → 10 → 3.
struct ToyImpl : torch::nn::Cloneable<ToyImpl> {
  ToyImpl() { reset(); }
  void reset() override {
    hidden = register_module("hidden", torch::nn::Linear(20, 10));
    out = register_module("out", torch::nn::Linear(10, 3));
  }
  at::Tensor forward(const at::Tensor& x) { return out->forward(at::relu(hidden->forward(x))); }
  torch::nn::Linear hidden{nullptr}, out{nullptr};
};

/// The layers of ConvNet in a module that can be cloned.
struct ConvNetImpl : torch::nn::Cloneable<ConvNetImpl> {
  ConvNetImpl() { reset(); }
  void reset() override {
    lockstep::models::ConvNet fresh;
    layer1 = register_module("layer1", fresh->layer1);
    layer2 = register_module("layer2", fresh->layer2);
    fc = register_module("fc", fresh->fc);
  }
  at::Tensor forward(const at::Tensor& x) { return fc->forward(layer2->forward(layer1->forward(x))); }
  torch::nn::Sequential layer1{nullptr}, layer2{nullptr}, fc{nullptr};
};

/// torch::nn::parallel::data_parallel with its own pieces, but for scatter and gather, which refuse the CPU.
template <typename M>
at::Tensor CloningForward(const std::shared_ptr<M>& model, const at::Tensor& x) {
  const std::vector<at::Device> devices(kReplicas, at::Device(at::kCPU));
  auto replicas = torch::nn::parallel::replicate(model, devices);
  return at::cat(torch::nn::parallel::parallel_apply(replicas, x.chunk(kReplicas), devices));
}

template <typename M>
struct Side {
  explicit Side(std::shared_ptr<M> model)
      : model(std::move(model)), optimizer(this->model->parameters(), torch::optim::SGDOptions(0.001)) {}
  void Step(const std::function<at::Tensor(const at::Tensor&)>& forward, const at::Tensor& x, const at::Tensor& y) {
    optimizer.zero_grad();
    torch::nn::functional::cross_entropy(forward(x), y).backward();
    optimizer.step();
  }
  const std::shared_ptr<M> model;
  torch::optim::SGD optimizer;
};

double Median(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

template <typename M>
void Compare(const std::string& name, const at::Tensor& x, const at::Tensor& y, int blocks, int steps, double target) {
  torch::manual_seed(1);
  Side<M> cloning(std::make_shared<M>()), ours(std::make_shared<M>());
  lockstep::DataParallel<M> parallel(ours.model, std::vector<at::Device>(kReplicas, at::Device(at::kCPU)));
  const std::function<void()> sides[] = {
      [&] { cloning.Step([&](const at::Tensor& in) { return CloningForward(cloning.model, in); }, x, y); },
      [&] { ours.Step([&](const at::Tensor& in) { return parallel.forward(in); }, x, y); }};
  std::vector<double> medians[2];
  for (int block = 0; block <= blocks; ++block) {  // the first one is not counted
    for (int turn = 0; turn < 2; ++turn) {
      const int side = (turn + block) % 2;
      std::vector<double> seconds;
      for (int i = 0; i < steps; ++i) {
        const auto begin = Clock::now();
        sides[side]();
        seconds.push_back(std::chrono::duration<double>(Clock::now() - begin).count());
      }
      if (block > 0) medians[side].push_back(Median(seconds));
    }
  }
  const double theirs = Median(medians[0]), mine = Median(medians[1]), ratio = theirs / mine;
  std::printf("| %s, batch %lld | %.3f ms | %.3f ms |\n", name.c_str(), static_cast<long long>(x.size(0)), theirs * 1e3,
              mine * 1e3);
  std::printf("ratio: DataParallel, %s, cloning on each step / ours: %.2f (target >= %g)%s\n", name.c_str(), ratio,
              target, ratio >= target ? "" : "  MISSED");
  std::fflush(stdout);
}

}  // namespace

int main(int argc, char** argv) {
  lockstep::KeepFreedMemory();
  int blocks = 7;
  for (int i = 1; i < argc; ++i) {
    constexpr char kFlag[] = "--blocks=";
    blocks = std::strncmp(argv[i], kFlag, sizeof(kFlag) - 1) == 0 ? std::atoi(argv[i] + sizeof(kFlag) - 1) : 0;
    if (blocks < 1) {
      std::fprintf(stderr, "error: unknown argument %s; known: --blocks=N\n", argv[i]);
      return 1;
    }
  }
  at::set_num_threads(kReplicas);
  std::printf("A step, medians of %d blocks; %zu replicas on the CPU:\n\n", blocks, kReplicas);
  std::printf("| model | cloning on each step | ours |\n| --- | --- | --- |\n");
  torch::manual_seed(2);
  Compare<ToyImpl>("toy", at::randn({100, 20}), at::randint(2, {100}), blocks, 300, 1.2);
  Compare<ConvNetImpl>("ConvNet", at::rand({256, 1, 28, 28}), at::randint(10, {256}), blocks, 10, 1.05);
  return 0;
}
