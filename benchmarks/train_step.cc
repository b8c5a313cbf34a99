// One rank of the training-step benchmark: forward, backward and SGD step of one model, by several subjects in turn, in
// blocks. Rank 0 prints a JSON line with each subject's median seconds per step over the blocks.
//
//   train_step MODEL BLOCKS STEPS SUBJECT…      (in each of several ranks)
//
// MODEL: mlp, conv_net, resnet18, or N tensors of a million numbers in all: tensors:N. SUBJECT: plain (no reducer, no
// group: uncoupled ranks), ours/alone (a world of one), or REDUCER/BACKEND with REDUCER ours, torch (c10d::Reducer) or
// after (AfterBackwardReducer).

#include <ATen/Functions.h>
#include <ATen/Parallel.h>
#include <ATen/TensorOperators.h>
#include <torch/nn/functional/loss.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/sgd.h>
#include <torch/utils.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "lockstep/base/malloc.h"
#include "lockstep/comm/process_group.h"
#include "lockstep/ddp/after_backward_reducer.h"
#include "lockstep/ddp/distributed_data_parallel.h"
#include "lockstep/ddp/torch_reducer.h"
#include "lockstep/models/conv_net.h"
#include "lockstep/models/resnet.h"

namespace {

using namespace lockstep;  // NOLINT: a program
using Clock = std::chrono::steady_clock;

double Seconds(Clock::time_point begin) { return std::chrono::duration<double>(Clock::now() - begin).count(); }

struct MlpImpl : torch::nn::Module {
  MlpImpl()
      : a(register_module("a", torch::nn::Linear(784, 2048))),
        b(register_module("b", torch::nn::Linear(2048, 2048))),
        c(register_module("c", torch::nn::Linear(2048, 10))) {}
  at::Tensor forward(const at::Tensor& x) { return c(at::relu(b(at::relu(a(x))))); }
  torch::nn::Linear a, b, c;
};

struct TensorsImpl : torch::nn::Module {
  explicit TensorsImpl(int64_t count) {
    for (int64_t i = 0; i < count; ++i) {
      all.push_back(register_parameter("p" + std::to_string(i), at::zeros({1000000 / count})));
    }
  }
  at::Tensor forward(const at::Tensor& x) {
    std::vector<at::Tensor> sums;
    for (const auto& p : all) sums.push_back((p * x).sum());
    return at::stack(sums).sum();
  }
  std::vector<at::Tensor> all;
};

struct Subject {
  std::string name;
  std::function<void()> step;
  std::vector<double> seconds{};
};

template <typename M>
std::function<void()> Step(std::shared_ptr<M> model, const std::string& subject, at::Tensor x, at::Tensor y,
                           std::map<std::string, ProcessGroupPtr>& groups) {
  const std::string reducer = subject.substr(0, subject.find('/'));
  const std::string backend = reducer == subject ? "" : subject.substr(subject.find('/') + 1);
  const auto optimizer = std::make_shared<torch::optim::SGD>(model->parameters(), torch::optim::SGDOptions(0.01));
  const auto run = [x, y, optimizer](auto& module) {
    optimizer->zero_grad();
    const at::Tensor out = module.forward(x);
    (y.defined() ? torch::nn::functional::cross_entropy(out, y) : out).backward();
    optimizer->step();
  };
  if (reducer == "plain") return [model, run] { run(*model); };
  if (backend == "alone") {
    const auto ddp = std::make_shared<DistributedDataParallel<M>>(model);
    return [ddp, run] { run(*ddp); };
  }
  if (groups.count(backend) == 0) {
    ProcessGroupOptions options;
    options.backend = backend;
    if (groups.count("") == 0) groups[""] = InitProcessGroup().value();
    std::vector<int> all;
    for (int rank = 0; rank < GetWorldSize(groups[""]); ++rank) all.push_back(rank);
    groups[backend] = NewSubGroup(groups[""], all, options).value();
  }
  DistributedDataParallelOptions options;
  options.broadcast_buffers = false;  // on no side: batch norm doesn't read them
  if (reducer == "torch") {
    options.make_reducer = [](auto parameters, const auto& group) {
      return std::make_unique<TorchReducer>(std::move(parameters), group);
    };
  } else if (reducer == "after") {
    options.make_reducer = [](auto parameters, const auto& group) {
      return std::make_unique<AfterBackwardReducer>(std::move(parameters), group);
    };
  }
  const auto ddp = std::make_shared<DistributedDataParallel<M>>(model, groups[backend], options);
  return [ddp, run] { run(*ddp); };
}

}  // namespace

int main(int argc, char** argv) {
  KeepFreedMemory();
  at::set_num_threads(1);
  const std::string kind = argv[1];
  const int blocks = std::atoi(argv[2]), steps = std::atoi(argv[3]);
  std::map<std::string, ProcessGroupPtr> groups;
  std::vector<Subject> subjects;
  for (int i = 4; i < argc; ++i) {
    torch::manual_seed(1);
    const std::string name = argv[i];
    const at::Tensor labels = at::randint(10, {32});
    std::function<void()> step;
    if (kind == "mlp") {
      step = Step(std::make_shared<MlpImpl>(), name, at::randn({32, 784}), labels, groups);
    } else if (kind == "conv_net") {
      step = Step(models::ConvNet().ptr(), name, at::randn({32, 1, 28, 28}), labels, groups);
    } else if (kind == "resnet18") {
      step = Step(models::ResNet18(10).ptr(), name, at::randn({8, 3, 32, 32}), labels.narrow(0, 0, 8), groups);
    } else {
      step = Step(std::make_shared<TensorsImpl>(std::atoll(kind.c_str() + 8)), name, at::scalar_tensor(0.5),
                  at::Tensor(), groups);
    }
    subjects.push_back({name, step});
  }
  const ProcessGroupPtr any = groups.empty() ? nullptr : groups[""];
  for (Subject& subject : subjects) {
    for (int i = 0; i < 5; ++i) subject.step();
  }
  for (int block = 0; block < blocks; ++block) {
    for (size_t turn = 0; turn < subjects.size(); ++turn) {
      Subject& subject = subjects[(turn + block) % subjects.size()];  // who comes after whom changes
      Barrier(any);
      subject.step();
      std::vector<double> each;
      for (int i = 0; i < steps; ++i) {
        const auto begin = Clock::now();
        subject.step();
        each.push_back(Seconds(begin));
      }
      std::nth_element(each.begin(), each.begin() + steps / 2, each.end());
      subject.seconds.push_back(each[steps / 2]);
    }
  }
  std::string line;
  for (Subject& subject : subjects) {
    std::sort(subject.seconds.begin(), subject.seconds.end());
    line += (line.empty() ? "{\"" : ", \"") + subject.name + "\": " + std::to_string(subject.seconds[blocks / 2]);
  }
  const char* rank = std::getenv("RANK");
  if (rank == nullptr || std::string(rank) == "0") std::printf("%s}\n", line.c_str());
  subjects.clear();
  for (auto group = groups.rbegin(); group != groups.rend(); ++group) DestroyProcessGroup(group->second);
}
