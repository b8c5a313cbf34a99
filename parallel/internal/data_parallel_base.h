#pragma once

#include <c10/core/Device.h>
#include <torch/nn/module.h>

#include <atomic>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "lockstep/parallel/internal/replica_threads.h"
#include "lockstep/parallel/internal/replicas.h"

namespace lockstep::internal {

/// What DataParallel is, whatever the type of the module.
class DataParallelBase : public torch::nn::Module {
 public:
  void train(bool on = true) override { module_->train(on); }
  bool is_training() const noexcept override { return module_->is_training(); }

  const std::vector<at::Device>& devices() const { return devices_; }
  int64_t dim() const { return dim_; }

 protected:
  using MakeReplica = std::function<std::shared_ptr<torch::nn::Module>(at::Device)>;

  DataParallelBase(std::shared_ptr<torch::nn::Module> module, std::vector<at::Device> devices, int64_t dim);

  /// Replicas for all devices but the first; `make` null: clones.
  std::vector<std::shared_ptr<torch::nn::Module>> MakeReplicas(const MakeReplica& make);

  /// `call(i)` for each of the first `count` replicas, which are as the module is now.
  void Run(size_t count, const std::function<void(size_t)>& call);

 private:
  const std::shared_ptr<torch::nn::Module> module_;
  const std::vector<at::Device> devices_;
  const int64_t dim_;
  std::optional<Replicas> replicas_;
  std::optional<ReplicaThreads> threads_;
  std::atomic<bool> running_{false};
};

}  // namespace lockstep::internal
