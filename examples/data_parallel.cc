// DataParallel, the toy run: 2,000 random rows of 20 features in 2 classes, through replicas of a small net.
//   ./bazelw run //examples:data_parallel -- --replicas=2
//   ./bazelw run //examples:data_parallel --config=cuda -- --gpu=0,1
// Prints what each replica saw in the first batch.

#include <absl/flags/flag.h>
#include <absl/flags/parse.h>
#include <absl/flags/usage.h>
#include <absl/flags/usage_config.h>
#include <absl/strings/match.h>
#include <absl/strings/str_cat.h>
#include <ATen/Context.h>
#include <ATen/Functions.h>
#include <torch/nn/functional/loss.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/sgd.h>
#include <torch/utils.h>

#include <atomic>
#include <chrono>
#include <cstdio>
#include <numeric>
#include <sstream>
#include <string>
#include <vector>

#include "lockstep/base/status_macros.h"
#include "lockstep/data/tensor_loader.h"
#include "lockstep/launch/devices.h"
#include "lockstep/metrics/device_memory.h"
#include "lockstep/metrics/process_memory.h"
#include "lockstep/parallel/data_parallel.h"
#include "lockstep/samplers/distributed_sampler.h"

ABSL_FLAG(std::string, gpu, "",
          "devices to train on, such as 0,1: indices into what CUDA_VISIBLE_DEVICES shows; empty: all, or the CPU");
ABSL_FLAG(int, replicas, 0, "replicas on the CPU, where there is no GPU; 0: two");
ABSL_FLAG(int, epochs, 10, "epochs");
ABSL_FLAG(int, batch_size, 100, "samples of a batch, of all devices together");
ABSL_FLAG(double, lr, 0.001, "learning rate");
ABSL_FLAG(uint64_t, seed, 1206, "seed of the data, the weights and the order of samples");

namespace {

using namespace lockstep;  // NOLINT: an example

constexpr int64_t kSamples = 2000, kFeatures = 20, kClasses = 2;

std::string SizeOf(const at::Tensor& tensor) {
  std::ostringstream text;
  text << tensor.sizes();
  return text.str();
}

/// 20 → 10 → 3. Says what it sees while `speak` is set.
struct ToyImpl : torch::nn::Module {
  explicit ToyImpl(int replica = 0)
      : Module("Toy"),
        replica(replica),
        hidden(register_module("hidden", torch::nn::Linear(kFeatures, 10))),
        out(register_module("out", torch::nn::Linear(10, 3))) {}
  at::Tensor forward(const at::Tensor& x) {
    at::Tensor result = out->forward(at::relu(hidden->forward(x)));
    if (speak) {  // one line in one call: replicas run at the same time
      std::printf("  replica %d on %s: input %s, output %s\n", replica, x.device().str().c_str(), SizeOf(x).c_str(),
                  SizeOf(result).c_str());
    }
    return result;
  }
  static std::atomic<bool> speak;
  const int replica;
  torch::nn::Linear hidden, out;
};
std::atomic<bool> ToyImpl::speak{false};
TORCH_MODULE(Toy);

absl::StatusOr<std::vector<at::Device>> Devices() {
  std::vector<int> gpus;
  LOCKSTEP_ASSIGN_OR_RETURN(gpus, ParseDeviceList("--gpu", absl::GetFlag(FLAGS_gpu)));
  const int count = at::hasCUDA() ? static_cast<int>(at::getNumGPUs()) : 0, replicas = absl::GetFlag(FLAGS_replicas);
  if (replicas < 0 || replicas > 1024) {
    return absl::InvalidArgumentError(absl::StrCat("--replicas=", replicas, ": must be from 0 to 1024"));
  }
  for (const int gpu : gpus) {
    if (gpu >= count) {
      return absl::InvalidArgumentError(absl::StrCat("--gpu: there is no device ", gpu, "; ", count, " can be seen"));
    }
  }
  if (count == 0) return std::vector<at::Device>(replicas == 0 ? 2 : replicas, at::Device(at::kCPU));
  if (replicas > 0) return absl::InvalidArgumentError("--replicas is for the CPU; say --gpu=0,1 for GPUs");
  if (gpus.empty()) {
    gpus.resize(count);
    std::iota(gpus.begin(), gpus.end(), 0);
  }
  std::vector<at::Device> devices;
  for (const int gpu : gpus) devices.emplace_back(at::kCUDA, static_cast<at::DeviceIndex>(gpu));
  return devices;
}

absl::Status Train() {
  std::vector<at::Device> devices;
  LOCKSTEP_ASSIGN_OR_RETURN(devices, Devices());
  const int epochs = absl::GetFlag(FLAGS_epochs), batch_size = absl::GetFlag(FLAGS_batch_size);
  if (epochs < 1) return absl::InvalidArgumentError(absl::StrCat("--epochs=", epochs, ": must be at least 1"));
  if (batch_size < 1) {
    return absl::InvalidArgumentError(absl::StrCat("--batch_size=", batch_size, ": must be at least 1"));
  }
  const double lr = absl::GetFlag(FLAGS_lr);
  if (!(lr >= 0 && lr <= 3e38))
    return absl::InvalidArgumentError(absl::StrCat("--lr=", lr, ": must be from 0 to 3e38"));
  const auto begin = std::chrono::steady_clock::now();
  const uint64_t seed = absl::GetFlag(FLAGS_seed);
  torch::manual_seed(seed);
  TensorLoader loader(at::randn({kSamples, kFeatures}), at::randint(kClasses, {kSamples}),
                      DistributedSampler(kSamples, 1, 0, {/*shuffle=*/true, seed}), {static_cast<size_t>(batch_size)});
  Toy model;
  model->to(devices[0]);
  int replicas = 0;
  DataParallel<ToyImpl> parallel(model, devices, [&](at::Device) { return std::make_shared<ToyImpl>(++replicas); });
  torch::optim::SGD optimizer(parallel.parameters(), torch::optim::SGDOptions(lr));

  std::string ids;
  for (const auto& device : devices) ids += (ids.empty() ? "" : ", ") + device.str();
  std::printf("devices: %zu (%s)%s\n", devices.size(), ids.c_str(), devices.size() == 1 ? "; nothing is wrapped" : "");
  std::ostringstream text;
  text << *model;
  std::printf("model: %s\n", text.str().c_str());
  for (int epoch = 0; epoch < epochs; ++epoch) {
    at::Tensor sum = at::zeros({}, devices[0]);
    loader.StartEpoch(epoch);
    for (int step = 0; auto batch = loader.Next(); ++step) {
      ToyImpl::speak = epoch == 0 && step == 0;
      if (ToyImpl::speak) std::printf("first batch:\n");
      optimizer.zero_grad();
      const at::Tensor out = parallel.forward(batch->data);
      if (ToyImpl::speak) {
        std::printf("  outside: input %s, output %s\n", SizeOf(batch->data).c_str(), SizeOf(out).c_str());
      }
      const at::Tensor loss = torch::nn::functional::cross_entropy(out, batch->target.to(out.device()));
      loss.backward();
      optimizer.step();
      sum += loss.detach() * batch->target.size(0);
    }
    std::printf("epoch %d: loss %.4f\n", epoch + 1, sum.item<double>() / kSamples);
  }
  for (const auto& device : devices) {
    if (device.is_cpu()) continue;
    const auto memory = PeakDeviceMemory(device);
    std::printf("memory of %s: %.2f MB at most\n", device.str().c_str(),
                memory ? static_cast<double>(memory->peak_allocated) / 1e6 : 0.);
  }
  std::printf("memory of the process: %.1f MB at most\n", static_cast<double>(PeakMemory()) / 1e6);
  std::printf("time: %.2f s\n", std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count());
  return absl::OkStatus();
}

}  // namespace

int main(int argc, char** argv) {
  absl::SetProgramUsageMessage("trains a toy net with DataParallel.");
  absl::FlagsUsageConfig usage;
  usage.contains_helpshort_flags = [](absl::string_view file) { return absl::StrContains(file, "data_parallel.cc"); };
  usage.contains_help_flags = usage.contains_helpshort_flags;
  absl::SetFlagsUsageConfig(usage);
  const std::vector<char*> rest = absl::ParseCommandLine(argc, argv);
  const absl::Status status =
      rest.size() > 1 ? absl::InvalidArgumentError(absl::StrCat("unexpected argument '", rest[1], "'")) : Train();
  if (status.ok()) return 0;
  std::fprintf(stderr, "error: %s\n", std::string(status.message()).c_str());
  return 1;
}
