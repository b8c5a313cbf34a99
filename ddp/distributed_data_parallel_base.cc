#include "lockstep/ddp/distributed_data_parallel_base.h"

#include <ATen/Functions.h>
#include <c10/core/GradMode.h>
#include <torch/nn/modules/embedding.h>

#include "lockstep/ddp/parameter_sync.h"

namespace lockstep {
namespace {

/// Weights whose gradients will be sparse.
std::set<c10::TensorImpl*> SparseWeights(torch::nn::Module& module) {
  std::set<c10::TensorImpl*> weights;
  for (const auto& child : module.modules()) {
    if (const auto* embedding = child->as<torch::nn::EmbeddingImpl>(); embedding && embedding->options.sparse()) {
      weights.insert(embedding->weight.unsafeGetTensorImpl());
    }
    if (const auto* bag = child->as<torch::nn::EmbeddingBagImpl>(); bag && bag->options.sparse()) {
      weights.insert(bag->weight.unsafeGetTensorImpl());
    }
  }
  return weights;
}

std::string Describe(const DistributedDataParallelOptions& options) {
  const BucketedReducerOptions& reducer = options.reducer;
  return "the options broadcast_parameters " + std::to_string(options.broadcast_parameters) + ", broadcast_buffers " +
         std::to_string(options.broadcast_buffers) + ", bucket_cap_bytes " + std::to_string(reducer.bucket_cap_bytes) +
         ", first_bucket_cap_bytes " + std::to_string(reducer.first_bucket_cap_bytes) + ", rebuild_buckets " +
         std::to_string(reducer.rebuild_buckets) + ", find_unused_parameters " +
         std::to_string(reducer.find_unused_parameters) + ", static_graph " + std::to_string(reducer.static_graph) +
         ", a hook " + std::to_string(reducer.hook != nullptr);
}

}  // namespace

DistributedDataParallelBase::DistributedDataParallelBase(std::shared_ptr<torch::nn::Module> module,
                                                         ProcessGroupPtr group, DistributedDataParallelOptions options)
    : module_(std::move(module)), group_(std::move(group)), options_(std::move(options)) {
  TORCH_CHECK(module_ != nullptr, "DistributedDataParallel: the module is null");
  for (auto& item : module_->named_parameters(/*recurse=*/false)) {
    register_parameter(item.key(), item.value(), item.value().requires_grad());
  }
  for (auto& item : module_->named_buffers(/*recurse=*/false)) register_buffer(item.key(), item.value());
  for (auto& item : module_->named_children()) register_module(item.key(), item.value());

  std::set<std::string> ignored = options_.ignored;
  const auto sparse = SparseWeights(*module_);
  for (auto& item : named_parameters()) {
    if (ignored.erase(item.key()) > 0) continue;
    named_.push_back({item.key(), item.value(), sparse.count(item.value().unsafeGetTensorImpl()) > 0});
    TORCH_CHECK(item.value().device().type() == named_[0].parameter.device().type(),
                "DistributedDataParallel: parameters are on two types of device: ", named_[0].name, " on ",
                named_[0].parameter.device(), ", ", item.key(), " on ", item.value().device(),
                "; move the module to one, or leave those of the other out with the option ignored");
  }
  std::vector<NamedParameter> buffers;
  for (auto& item : named_buffers()) {
    if (ignored.erase(item.key()) > 0 || !item.value().defined()) continue;
    buffers.push_back({item.key(), item.value()});
    synced_buffers_.push_back(item.value());
  }
  TORCH_CHECK(ignored.empty(), "DistributedDataParallel: nothing in the module is named ", *ignored.begin(),
              ", which the option ignored names");

  for (const auto* list : {&named_, &buffers}) {
    for (const auto& [name, tensor, sparse] : *list) {
      for (int64_t d = 0; d < tensor.dim(); ++d) {
        TORCH_CHECK(tensor.stride(d) != 0 || tensor.size(d) <= 1, "DistributedDataParallel: ", name,
                    " is expanded: its elements share memory; make it contiguous first");
      }
    }
  }
  CheckParametersAgree(named_, group_, buffers, Describe(options_));
  if (options_.broadcast_parameters) {
    std::vector<at::Tensor> parameters;
    for (const auto& named : named_) parameters.push_back(named.parameter);
    BroadcastTensors(parameters, group_);
    BroadcastTensors(synced_buffers_, group_);
  }
  reducer_ = options_.make_reducer ? options_.make_reducer(named_, group_)
                                   : std::make_unique<BucketedReducer>(named_, group_, options_.reducer);
}

void DistributedDataParallelBase::BeforeForward() {
  if (!group_ || !c10::GradMode::is_enabled() || !sync_) return;
  if (options_.broadcast_buffers && is_training()) {
    BroadcastTensors(synced_buffers_, group_, join_ ? join_->first_rank_with_batch : 0);
  }
}

void DistributedDataParallelBase::AfterForward(const std::vector<at::Tensor>& outputs, const std::string& opaque) {
  if (!group_ || !c10::GradMode::is_enabled()) return;
  TORCH_CHECK(opaque.empty() || !options_.reducer.find_unused_parameters || options_.reducer.static_graph,
              "DistributedDataParallel: forward returns a ", opaque,
              ", in which the tensors can't be found that find_unused_parameters needs; write an overload "
              "VisitTensors(const ",
              opaque,
              "&, const lockstep::TensorVisitor&) in its namespace "
              "(see lockstep/ddp/tensor_visitor.h), or set static_graph");
  if (join_) {
    if (!window_open_) {
      window_has_batch_ = false;
      window_ranks_ = join_->ranks_with_batch;
    }
    window_has_batch_ |= join_->has_batch;
    window_open_ = !sync_;
    if (!join_->has_batch) {
      TORCH_CHECK(
          !outputs.empty() || !window_has_batch_,
          "DistributedDataParallel: in a Join a forward must return its outputs, in a type that can be looked into "
          "(see lockstep/ddp/tensor_visitor.h), to keep a batch that doesn't count out of what was accumulated");
      for (const auto& output : outputs) {
        if (output.defined() && output.grad_fn()) {
          output.register_hook([](const at::Tensor& grad) { return grad.defined() ? at::zeros_like(grad) : grad; });
        }
      }
    }
    std::optional<double> weight = weight_;
    if (!window_has_batch_) {
      weight = 0;
    } else if (!weight) {  // given on all ranks, as long as one may have 0
      weight = 1.0 / (join_->divide_by_initial_world_size ? GetWorldSize(group_) : window_ranks_);
    }
    reducer_->SetWeight(weight);
  }
  sync_ ? reducer_->PrepareForBackward(outputs) : reducer_->PrepareForAccumulation(outputs);
}

void DistributedDataParallelBase::SyncBuffers() { BroadcastTensors(synced_buffers_, group_); }

void DistributedDataParallelBase::CheckParametersEqual() const { lockstep::CheckParametersEqual(named_, group_); }

void DistributedDataParallelBase::SetWeight(std::optional<double> weight) {
  weight_ = weight;
  reducer_->SetWeight(weight);
}

void DistributedDataParallelBase::SetJoinState(const JoinState* state) {
  if (state != nullptr) {
    join_ = *state;
    return;
  }
  if (join_) reducer_->SetWeight(weight_);
  join_.reset();
  window_open_ = false;
}

void DistributedDataParallelBase::OnJoinEnd(const JoinState& last) {
  if (options_.broadcast_buffers) BroadcastTensors(synced_buffers_, group_, last.first_rank_with_batch);
}

double SampleWeight(int64_t samples, const ProcessGroupPtr& group) {
  at::Tensor total = at::scalar_tensor(samples, at::kLong);
  AllReduce(total, group);
  const auto all = total.item<int64_t>();
  return all == 0 ? 0 : static_cast<double>(samples) / static_cast<double>(all);
}

}  // namespace lockstep
