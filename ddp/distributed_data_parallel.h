#pragma once

#include <torch/nn/pimpl.h>

#include <memory>
#include <type_traits>
#include <utility>

#include "lockstep/ddp/distributed_data_parallel_base.h"
#include "lockstep/ddp/tensor_visitor.h"

namespace lockstep {

/// A module that runs `module` and averages its gradients over the ranks of a group during backward.
///
/// Its parameters, buffers and children are the wrapped module's own, under the same names, so that
/// `named_parameters()` and saved keys carry no prefix. Parameters that are registered with the wrapped module later
/// are not seen. A forward with gradients enabled is followed by an averaged backward, in evaluation mode too; a
/// forward in evaluation mode itself communicates nothing.
///
/// Errors: see BucketedReducer. Not for several threads at once.
template <typename M>
class DistributedDataParallel : public DistributedDataParallelBase {
 public:
  /// Collective. Throws when the ranks' modules differ, when nothing in them needs a gradient, or when parameters are
  /// on two types of device.
  explicit DistributedDataParallel(std::shared_ptr<M> module, ProcessGroupPtr group = nullptr,
                                   DistributedDataParallelOptions options = {})
      : DistributedDataParallelBase(module, std::move(group), std::move(options)), module_(std::move(module)) {}
  /// The same for a module holder (`TORCH_MODULE`).
  explicit DistributedDataParallel(const torch::nn::ModuleHolder<M>& holder, ProcessGroupPtr group = nullptr,
                                   DistributedDataParallelOptions options = {})
      : DistributedDataParallel(holder.ptr(), std::move(group), std::move(options)) {}

  /// What the wrapped module's forward takes and returns. Where tensors lie in what it returns says tensor_visitor.h.
  template <typename... Args>
  decltype(auto) forward(Args&&... args) {
    using Result = decltype(module_->forward(std::forward<Args>(args)...));
    BeforeForward();
    if constexpr (std::is_void_v<Result>) {
      module_->forward(std::forward<Args>(args)...);
      AfterForward({}, "void");
    } else {
      Result result = module_->forward(std::forward<Args>(args)...);
      std::vector<at::Tensor> outputs;
      std::string opaque;
      internal::Walk(
          result, [&](const at::Tensor& tensor) { outputs.push_back(tensor); },
          [&](std::string type) { opaque = std::move(type); });
      AfterForward(outputs, opaque);
      return result;
    }
  }

  M& module() { return *module_; }

 private:
  const std::shared_ptr<M> module_;
};

}  // namespace lockstep
