#pragma once

#include <c10/core/GradMode.h>
#include <torch/nn/module.h>

#include <functional>
#include <memory>
#include <utility>

#include "lockstep/comm/collectives.h"
#include "lockstep/ddp/bucketed_reducer.h"
#include "lockstep/ddp/parameter_sync.h"
#include "lockstep/ddp/reducer.h"

namespace lockstep {

struct DistributedDataParallelOptions {
  BucketedReducerOptions buckets;
  bool broadcast_parameters = true;  ///< At the start: rank 0's parameters and buffers on all ranks.
  bool broadcast_buffers = true;     ///< Before each training forward: rank 0's buffers on all ranks.
  /// Makes the reducer; null: a BucketedReducer.
  std::function<std::unique_ptr<Reducer>(std::vector<NamedParameter>, const ProcessGroupPtr&)> make_reducer;
};

/// A module that runs `module` and averages its gradients over the ranks of a group during backward.
///
/// Its parameters, buffers and children are the wrapped module's own, under the same names, so that
/// `named_parameters()` and saved keys carry no prefix. Parameters that are registered with the wrapped module later
/// are not seen. A forward with gradients enabled is followed by an averaged backward, in evaluation mode too; a
/// forward in evaluation mode itself communicates nothing.
template <typename M>
class DistributedDataParallel : public torch::nn::Module {
 public:
  /// Collective. Throws when the ranks' modules differ or nothing in them needs a gradient.
  explicit DistributedDataParallel(std::shared_ptr<M> module, ProcessGroupPtr group = nullptr,
                                   DistributedDataParallelOptions options = {})
      : module_(std::move(module)), group_(std::move(group)), options_(std::move(options)) {
    for (auto& item : module_->named_parameters(/*recurse=*/false)) {
      register_parameter(item.key(), item.value(), item.value().requires_grad());
    }
    for (auto& item : module_->named_buffers(/*recurse=*/false)) register_buffer(item.key(), item.value());
    for (auto& item : module_->named_children()) register_module(item.key(), item.value());

    std::vector<NamedParameter> named;
    for (auto& item : named_parameters()) named.push_back({item.key(), item.value()});
    CheckParametersAgree(named, group_);
    if (options_.broadcast_parameters) {
      BroadcastTensors(parameters(), group_);
      BroadcastTensors(buffers(), group_);
    }
    reducer_ = options_.make_reducer ? options_.make_reducer(std::move(named), group_)
                                     : std::make_unique<BucketedReducer>(std::move(named), group_, options_.buckets);
  }
  /// The same for a module holder (`TORCH_MODULE`).
  explicit DistributedDataParallel(const torch::nn::ModuleHolder<M>& holder, ProcessGroupPtr group = nullptr,
                                   DistributedDataParallelOptions options = {})
      : DistributedDataParallel(holder.ptr(), std::move(group), std::move(options)) {}

  /// What the wrapped module's forward takes and returns.
  template <typename... Args>
  decltype(auto) forward(Args&&... args) {
    if (c10::GradMode::is_enabled() && require_sync_) {
      if (options_.broadcast_buffers && is_training()) SyncBuffers();
      reducer_->PrepareForBackward();
    }
    return module_->forward(std::forward<Args>(args)...);
  }

  void train(bool on = true) override { module_->train(on); }
  bool is_training() const noexcept override { return module_->is_training(); }

  /// Rank 0's buffers on all ranks, now. Call it before an evaluation of a module with batch norm that is not
  /// synchronised: since the last training forward each rank has updated its running statistics with its own batch. A
  /// module whose training forward doesn't read its buffers (batch norm doesn't) needs no more than that, so that
  /// `broadcast_buffers` may be off. Collective.
  void SyncBuffers() { BroadcastTensors(buffers(), group_); }

  M& module() { return *module_; }
  Reducer& reducer() { return *reducer_; }

  /// While it lives, backward accumulates this rank's gradients and averages nothing; the first backward whose forward
  /// ran after it averages what was accumulated.
  class NoSync {
   public:
    explicit NoSync(DistributedDataParallel& ddp) : ddp_(ddp), before_(ddp.require_sync_) {
      ddp_.require_sync_ = false;
    }
    ~NoSync() { ddp_.require_sync_ = before_; }
    NoSync(const NoSync&) = delete;
    NoSync& operator=(const NoSync&) = delete;

   private:
    DistributedDataParallel& ddp_;
    const bool before_;
  };

 private:
  const std::shared_ptr<M> module_;
  const ProcessGroupPtr group_;
  const DistributedDataParallelOptions options_;
  std::unique_ptr<Reducer> reducer_;
  bool require_sync_ = true;
};

}  // namespace lockstep
