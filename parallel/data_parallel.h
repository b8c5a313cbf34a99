#pragma once

#include <torch/nn/pimpl.h>

#include <functional>
#include <memory>
#include <optional>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "lockstep/parallel/internal/data_parallel_base.h"
#include "lockstep/parallel/internal/piece_versions.h"
#include "lockstep/parallel/internal/scatter.h"

namespace lockstep {

/// Runs a module on several devices in one process: a batch is cut, each piece goes through a replica of the module in
/// a thread of its own, outputs are put together on the first device. The module is the first replica. Semantics of
/// Python's `torch.nn.DataParallel`; where each rank can be a process, DistributedDataParallel is faster.
///
/// Replicas and threads are made once and kept. Before each forward replicas get the module's values (on the CPU they
/// share its memory), buffers, modes, dtype and frozen parameters, so that the module may be changed between steps, but
/// for what is registered later and members that aren't registered. `loss.backward()` leaves the sum of all replicas'
/// gradients in the module's, which an optimizer over its parameters then uses; what no replica used gets none.
/// Buffers, as batch norm's statistics, are those of the first replica. Names carry no prefix.
///
/// On the CPU (devices {cpu, cpu, …}) only forwards run side by side: LibTorch runs a CPU's backward in the thread that
/// called it, replica after replica. On GPUs each has a thread in backward too. Replicas on the CPU draw random
/// numbers, as in dropout, from one generator in any order.
///
/// Errors are c10::Error; one out of a replica says which it was and has the original nested in it. One forward at a
/// time; a second one is such an error.
template <typename M>
class DataParallel : public internal::DataParallelBase {
 public:
  /// Makes a module like the first one; its values don't matter. It is moved to the device.
  using MakeReplica = std::function<std::shared_ptr<M>(at::Device)>;

  /// `module` is on the first of `devices`; none: all GPUs, or the CPU. One device: nothing is wrapped, tensors are
  /// only moved there. `make_replica` null: `module->clone`, for what derives from `torch::nn::Cloneable`. Batches are
  /// cut along `dim`.
  explicit DataParallel(std::shared_ptr<M> module, std::vector<at::Device> devices = {},
                        const MakeReplica& make_replica = nullptr, int64_t dim = 0)
      : DataParallelBase(module, std::move(devices), dim), each_{module} {
    for (const auto& replica : MakeReplicas(make_replica)) {
      each_.push_back(std::dynamic_pointer_cast<M>(replica));
      TORCH_CHECK(each_.back() != nullptr, "DataParallel: the module's clone is of another type");
    }
  }
  /// The same for a module holder (`TORCH_MODULE`).
  explicit DataParallel(const torch::nn::ModuleHolder<M>& holder, std::vector<at::Device> devices = {},
                        const MakeReplica& make_replica = nullptr, int64_t dim = 0)
      : DataParallel(holder.ptr(), std::move(devices), make_replica, dim) {}

  /// What the module's forward takes and returns. The tensors in the arguments (where they lie says
  /// ddp/tensor_visitor.h) are cut as `torch.chunk` does, so that fewer replicas run when there are few samples; all
  /// have the same size along `dim`. Tensors without dimensions and all else goes to each replica. Outputs are joined
  /// along `dim`, tensors without dimensions to a vector, one number for each replica; of what is no tensor the first
  /// replica's is returned.
  template <typename... Args>
  auto forward(Args&&... args) {
    using Result = std::decay_t<decltype(std::declval<M&>().forward(std::declval<std::decay_t<Args>>()...))>;
    internal::PieceVersions versions;
    auto each = internal::ScatterArguments(std::tuple<std::decay_t<Args>...>(std::forward<Args>(args)...), devices(),
                                           dim(), versions);
    const auto call = [&](size_t i) -> decltype(auto) {
      return std::apply([&](auto&... own) -> decltype(auto) { return each_[i]->forward(std::move(own)...); }, each[i]);
    };
    if constexpr (std::is_void_v<Result>) {
      devices().size() == 1 ? call(0) : Run(each.size(), call);
      versions.Settle();
    } else {
      if (devices().size() == 1) return static_cast<Result>(call(0));
      std::vector<std::optional<Result>> results(each.size());
      Run(each.size(), [&](size_t i) { results[i].emplace(call(i)); });
      versions.Settle();
      return internal::GatherResults(results, devices()[0], dim());
    }
  }

  /// The first replica.
  M& module() { return *each_[0]; }

 private:
  std::vector<std::shared_ptr<M>> each_;
};

}  // namespace lockstep
