#include "lockstep/parallel/internal/data_parallel_base.h"

#include <ATen/Context.h>
#include <c10/util/Exception.h>
#include <c10/util/ScopeExit.h>

#include <mutex>
#include <set>
#include <utility>

namespace lockstep::internal {
namespace {

/// Every GPU, or the CPU.
std::vector<at::Device> AllDevices() {
  std::vector<at::Device> devices;
  if (at::hasCUDA()) {
    for (size_t i = 0; i < at::getNumGPUs(); ++i) devices.emplace_back(at::kCUDA, static_cast<at::DeviceIndex>(i));
  }
  if (devices.empty()) devices.emplace_back(at::kCPU);
  return devices;
}

/// Modules draw their first weights when they are made; a replica's are thrown away, and the numbers that the program
/// draws next shall not depend on how many there are.
class KeepGenerator {
 public:
  KeepGenerator() : generator_(at::globalContext().defaultGenerator(at::kCPU)) {
    std::lock_guard<std::mutex> lock(generator_.mutex());
    state_ = generator_.get_state();
  }
  ~KeepGenerator() {
    std::lock_guard<std::mutex> lock(generator_.mutex());
    generator_.set_state(state_);
  }
  KeepGenerator(const KeepGenerator&) = delete;
  KeepGenerator& operator=(const KeepGenerator&) = delete;

 private:
  at::Generator generator_;
  at::Tensor state_;
};

}  // namespace

DataParallelBase::DataParallelBase(std::shared_ptr<torch::nn::Module> module, std::vector<at::Device> devices,
                                   int64_t dim)
    : module_(std::move(module)), devices_(devices.empty() ? AllDevices() : std::move(devices)), dim_(dim) {
  TORCH_CHECK(module_ != nullptr, "DataParallel: the module is null");
  std::set<at::DeviceIndex> indices;
  for (const auto& device : devices_) {
    TORCH_CHECK(device.type() == devices_[0].type(), "DataParallel: devices of two types, ", devices_[0], " and ",
                device);
    TORCH_CHECK(device.is_cpu() || device.has_index(), "DataParallel: device ", device,
                " has no index; give one, as in ", device, ":0");
    TORCH_CHECK(device.is_cpu() || indices.insert(device.index()).second, "DataParallel: device ", device,
                " is there twice");
  }
  const auto check = [&](const auto& named) {
    for (const auto& item : named) {
      TORCH_CHECK(!item.value().defined() || item.value().device() == devices_[0], "DataParallel: ", item.key(),
                  " is on ", item.value().device(), "; move the module to the first device, ", devices_[0]);
    }
  };
  check(module_->named_parameters());
  check(module_->named_buffers());
  for (auto& item : module_->named_parameters(/*recurse=*/false)) {
    register_parameter(item.key(), item.value(), item.value().requires_grad());
  }
  for (auto& item : module_->named_buffers(/*recurse=*/false)) register_buffer(item.key(), item.value());
  for (auto& item : module_->named_children()) register_module(item.key(), item.value());
}

std::vector<std::shared_ptr<torch::nn::Module>> DataParallelBase::MakeReplicas(const MakeReplica& make) {
  std::vector<std::shared_ptr<torch::nn::Module>> modules;
  if (devices_.size() == 1) return modules;
  const KeepGenerator keep;
  std::vector<Replicas::Replica> replicas;
  for (size_t i = 1; i < devices_.size(); ++i) {
    if (make) {
      modules.push_back(make(devices_[i]));
      TORCH_CHECK(modules.back() != nullptr, "DataParallel: make_replica gave null for ", devices_[i]);
      modules.back()->to(devices_[i]);
    } else {
      try {
        modules.push_back(module_->clone(devices_[i]));
      } catch (const c10::Error& e) {
        TORCH_CHECK(false, "DataParallel: the module can't be cloned (", e.what_without_backtrace(),
                    "); derive it from torch::nn::Cloneable, or give make_replica");
      }
    }
    replicas.push_back({modules.back(), devices_[i]});
  }
  replicas_.emplace(module_, devices_[0], std::move(replicas));
  threads_.emplace(devices_);
  return modules;
}

void DataParallelBase::Run(size_t count, const std::function<void(size_t)>& call) {
  TORCH_CHECK(!running_.exchange(true),
              "DataParallel: a forward is running already, in another thread or around this one; one at a time");
  const auto end = c10::make_scope_exit([this] { running_ = false; });
  replicas_->Follow();
  threads_->Run(count, call);
}

}  // namespace lockstep::internal
