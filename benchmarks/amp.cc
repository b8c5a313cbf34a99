// Ours of the mixed-precision benchmark: prints a JSON line with the median seconds of each subject, the same as
// amp_peer.py's. On CUDA where there is one, else on the CPU with one thread.

#include <ATen/Context.h>
#include <ATen/Functions.h>
#include <ATen/Parallel.h>
#include <torch/cuda.h>
#include <torch/nn/functional/loss.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/sgd.h>
#include <torch/utils.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/amp/autocast.h"
#include "lockstep/amp/grad_scaler.h"
#include "lockstep/base/malloc.h"
#include "lockstep/models/conv_net.h"
#include "lockstep/optim/clip_gradients.h"

namespace {

using namespace lockstep;  // NOLINT: a program
using Clock = std::chrono::steady_clock;

struct Subject {
  std::string name;
  std::function<void()> prepare, run;  // what is not timed, and what is
  int times;
  std::vector<double> seconds{};
};

/// 160 tensors: as large as those of a convolutional net, or all small.
std::vector<at::Tensor> Parameters(at::Device device, bool small) {
  std::vector<at::Tensor> parameters;
  for (int i = 0; i < 160; ++i) {
    const int64_t size = small || i % 4 > 1 ? 256 : i % 4 == 0 ? 147456 : 65536;
    parameters.push_back(at::ones({size}, device).requires_grad_());
    parameters.back().mutable_grad() = at::ones({size}, device);
  }
  return parameters;
}

void AddScaler(std::vector<Subject>& subjects, at::Device device) {
  for (const bool small : {false, true}) {
    const auto optimizer = std::make_shared<torch::optim::SGD>(Parameters(device, small), torch::optim::SGDOptions(0.));
    GradScalerOptions options;
    options.init_scale = 1;
    const auto scaler = std::make_shared<GradScaler>(options);
    scaler->Scale(at::ones({}, device));
    const std::string kind = small ? "small" : "large";
    const auto nothing = [] {};
    subjects.push_back({"unscale/" + kind, [=] { scaler->Update(1.); }, [=] { scaler->Unscale(*optimizer); }, 50});
    subjects.push_back({"clip/" + kind, nothing, [=] { ClipGradientNorm(AllParameters(*optimizer), 1e9); }, 50});
    if (!small) continue;
    subjects.push_back({"step/" + kind, [=] { scaler->Update(1.); },
                        [=] {
                          scaler->Step(*optimizer);
                          scaler->Update();
                        },
                        50});
  }
}

void AddConvNet(std::vector<Subject>& subjects, at::Device device, std::optional<at::ScalarType> dtype,
                const std::string& name) {
  torch::manual_seed(1);
  models::ConvNet model;
  model->to(device);
  const auto optimizer = std::make_shared<torch::optim::SGD>(model->parameters(), torch::optim::SGDOptions(0.01));
  GradScalerOptions options;
  options.enabled = dtype == at::kHalf;
  const auto scaler = std::make_shared<GradScaler>(options);
  const at::Tensor x = at::randn({128, 1, 28, 28}, device),
                   y = at::randint(10, {128}, at::TensorOptions(device).dtype(at::kLong));
  subjects.push_back({"conv_net/" + name, [] {},
                      [=]() mutable {
                        optimizer->zero_grad();
                        at::Tensor loss;
                        {
                          const AutocastGuard autocast(device.type(), dtype);
                          loss = torch::nn::functional::cross_entropy(model->forward(x), y);
                        }
                        scaler->Scale(loss).backward();
                        scaler->Step(*optimizer);
                        scaler->Update();
                      },
                      20});
}

/// A step of a tiny model, where the calls around it would show: with a scaler that is off, and without any.
void AddDisabled(std::vector<Subject>& subjects, at::Device device) {
  torch::nn::Linear model(32, 32);
  model->to(device);
  const auto optimizer = std::make_shared<torch::optim::SGD>(model->parameters(), torch::optim::SGDOptions(0.));
  GradScalerOptions options;
  options.enabled = false;
  const auto scaler = std::make_shared<GradScaler>(options);
  const at::Tensor x = at::randn({32, 32}, device);
  auto loss = [=]() mutable {
    optimizer->zero_grad();
    return model->forward(x).square().mean();
  };
  const auto without = [=]() mutable {
    loss().backward();
    optimizer->step();
  };
  const auto with = [=]() mutable {
    scaler->Scale(loss()).backward();
    scaler->Step(*optimizer);
    scaler->Update();
  };
  // In turns, so that nothing but the scaler differs.
  subjects.push_back({"tiny/none", with, without, 5000});
  subjects.push_back({"tiny/disabled", without, with, 5000});
}

}  // namespace

int main() {
  KeepFreedMemory();
  at::set_num_threads(1);
  const bool cuda = at::hasCUDA() && at::getNumGPUs() > 0;
  const at::Device device = cuda ? at::kCUDA : at::kCPU;
  std::vector<Subject> subjects;
  AddScaler(subjects, device);
  AddConvNet(subjects, device, std::nullopt, "float");
  AddConvNet(subjects, device, at::kBFloat16, "bf16");
  if (cuda) AddConvNet(subjects, device, at::kHalf, "fp16");
  AddDisabled(subjects, device);
  const auto wait = [cuda] {
    if (cuda) torch::cuda::synchronize();
  };
  for (int block = 0; block < 5; ++block) {
    for (Subject& subject : subjects) {
      for (int i = 0; i < subject.times + 5; ++i) {
        subject.prepare();
        wait();
        const auto begin = Clock::now();
        subject.run();
        wait();
        const double seconds = std::chrono::duration<double>(Clock::now() - begin).count();
        if (i >= 5) subject.seconds.push_back(seconds);
      }
    }
  }
  std::printf("{\"device\": \"%s\"", cuda ? "CUDA" : "CPU");
  for (Subject& subject : subjects) {
    auto middle = subject.seconds.begin() + static_cast<std::ptrdiff_t>(subject.seconds.size() / 2);
    std::nth_element(subject.seconds.begin(), middle, subject.seconds.end());
    std::printf(", \"%s\": %.9f", subject.name.c_str(), *middle);
  }
  std::printf("}\n");
}
