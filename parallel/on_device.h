#pragma once

#include <c10/core/Device.h>
#include <torch/nn/module.h>
#include <torch/nn/pimpl.h>

#include <memory>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "lockstep/parallel/internal/tensors_of.h"

namespace lockstep {

/// A part of a model that lives on a device of its own: moves the module there, and in each forward the tensors of the
/// arguments. A model whose layers are on several devices is a module with such parts, each called with what the one
/// before returned; backward takes gradients back the same way. It trains alone and inside DistributedDataParallel,
/// which makes buckets for each device.
///
/// Tensors in the arguments are found as ddp/tensor_visitor.h says. Names carry no prefix. Parameters keep their
/// identity when they are moved, so that optimizers may be made before or after.
template <typename M>
class OnDevice : public torch::nn::Module {
 public:
  OnDevice(std::shared_ptr<M> module, at::Device device) : module_(std::move(module)), device_(device) {
    TORCH_CHECK(module_ != nullptr, "OnDevice: the module is null");
    module_->to(device_);
    for (auto& item : module_->named_parameters(/*recurse=*/false)) {
      register_parameter(item.key(), item.value(), item.value().requires_grad());
    }
    for (auto& item : module_->named_buffers(/*recurse=*/false)) register_buffer(item.key(), item.value());
    for (auto& item : module_->named_children()) register_module(item.key(), item.value());
  }
  /// The same for a module holder (`TORCH_MODULE`).
  OnDevice(const torch::nn::ModuleHolder<M>& holder, at::Device device) : OnDevice(holder.ptr(), device) {}

  /// What the module's forward takes and returns.
  template <typename... Args>
  auto forward(Args&&... args) {
    std::tuple<std::decay_t<Args>...> own(std::forward<Args>(args)...);
    std::vector<at::Tensor> tensors = internal::TensorsOf(own);
    bool moved = false;
    for (auto& tensor : tensors) {
      if (!tensor.defined() || tensor.device() == device_) continue;
      tensor = tensor.to(tensor.options().device(device_).requires_grad(false));
      moved = true;
    }
    if (moved) internal::ReplaceTensors(own, tensors);
    return std::apply([&](auto&... arguments) { return module_->forward(std::move(arguments)...); }, own);
  }

  void train(bool on = true) override { module_->train(on); }
  bool is_training() const noexcept override { return module_->is_training(); }

  M& module() { return *module_; }
  at::Device device() const { return device_; }

 private:
  const std::shared_ptr<M> module_;
  const at::Device device_;
};

}  // namespace lockstep
