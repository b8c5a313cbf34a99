#include "lockstep/ddp/bucketed_reducer.h"

#include <ATen/Functions.h>
#include <c10/core/GradMode.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/utils/lambda_post_hook.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>
#include <set>

namespace lockstep {
namespace {

/// A tensor over `flat`'s memory at `offset` that autograd takes for no view, so that the optimizers' zero_grad may
/// detach it; strided like `like` where that leaves no gaps.
at::Tensor Alias(const at::Tensor& flat, int64_t offset, const at::Tensor& like) {
  const at::NoGradGuard no_grad;
  const std::vector<int64_t> strides = like.is_non_overlapping_and_dense()
                                           ? like.strides().vec()
                                           : at::empty_like(like, at::MemoryFormat::Contiguous).strides().vec();
  return at::empty({0}, flat.options()).set_(flat.storage(), flat.storage_offset() + offset, like.sizes(), strides);
}

/// Zeros; in memory that the backend can communicate without a copy, if it has such.
at::Tensor NewBucket(int64_t elements, at::TensorOptions options, const ProcessGroupPtr& group) {
  options = options.requires_grad(false).memory_format(std::nullopt);
  const auto backend = group->getBackend(options.device().type());
  const auto index = options.device().has_index() ? options.device().index() : c10::DeviceIndex(0);
  if (!backend->supportsTensorAlloc(index)) return at::zeros({elements}, options);
  return backend->allocateTensor(elements, options).zero_();
}

}  // namespace

BucketedReducer::BucketedReducer(std::vector<NamedParameter> parameters, ProcessGroupPtr group,
                                 BucketedReducerOptions options)
    : group_(std::move(group)) {
  std::set<c10::TensorImpl*> seen;  // a parameter that two modules share has one gradient
  for (auto& named : parameters) {
    if (!named.parameter.requires_grad() || !seen.insert(named.parameter.unsafeGetTensorImpl()).second) continue;
    Slot slot;
    slot.named = std::move(named);
    slots_.push_back(std::move(slot));
  }
  TORCH_CHECK(!slots_.empty(), "reducer: the module has no parameter that needs a gradient");
  if (!group_) return;
  BuildBuckets(options);
  AddHooks();
}

BucketedReducer::~BucketedReducer() {
  for (auto& slot : slots_) {
    if (slot.accumulator) slot.accumulator->del_post_hook(slot.hook);
  }
}

void BucketedReducer::BuildBuckets(const BucketedReducerOptions& options) {
  // One open bucket for each dtype and device; a full one is closed. Reverse order: backward makes the last
  // parameters ready first.
  // Looked up by what a parameter is, kept in the order of appearance, which is the same on all ranks; device numbers
  // may not be.
  struct OpenBucket {
    at::ScalarType dtype;
    at::Device device;
    size_t bytes;
    std::vector<size_t> members;
  };
  std::vector<OpenBucket> open;
  std::vector<std::vector<size_t>> groups;
  size_t cap = options.first_bucket_cap_bytes;
  for (size_t i = slots_.size(); i-- > 0;) {
    const at::Tensor& parameter = slots_[i].named.parameter;
    auto bucket = std::find_if(open.begin(), open.end(), [&](const OpenBucket& b) {
      return b.dtype == parameter.scalar_type() && b.device == parameter.device();
    });
    if (bucket == open.end()) {
      open.push_back({parameter.scalar_type(), parameter.device(), 0, {}});
      bucket = open.end() - 1;
    }
    bucket->members.push_back(i);
    bucket->bytes += parameter.nbytes();
    if (bucket->bytes >= cap) {
      groups.push_back(std::move(bucket->members));
      open.erase(bucket);
      cap = options.bucket_cap_bytes;
    }
  }
  for (auto& bucket : open) groups.push_back(std::move(bucket.members));

  for (auto& members : groups) {
    int64_t total = 0;
    for (size_t i : members) total += slots_[i].named.parameter.numel();
    Bucket bucket;
    bucket.flat = NewBucket(total, slots_[members.front()].named.parameter.options(), group_);
    int64_t offset = 0;
    for (size_t i : members) {
      slots_[i].bucket = buckets_.size();
      slots_[i].alias = Alias(bucket.flat, offset, slots_[i].named.parameter);
      offset += slots_[i].named.parameter.numel();
    }
    bucket.parameters = std::move(members);
    buckets_.push_back(std::move(bucket));
  }
}

void BucketedReducer::AddHooks() {
  for (size_t i = 0; i < slots_.size(); ++i) {
    slots_[i].accumulator = torch::autograd::impl::grad_accumulator(slots_[i].named.parameter);
    slots_[i].hook = slots_[i].accumulator->add_post_hook(std::make_unique<torch::autograd::utils::LambdaPostHook>(
        [this, i](const torch::autograd::variable_list& outputs, const torch::autograd::variable_list&) {
          MarkReady(i);
          return outputs;
        }));
  }
}

void BucketedReducer::PrepareForBackward() {
  if (!group_) return;
  std::lock_guard<std::mutex> lock(mutex_);
  if (armed_ && started_) {
    armed_ = started_ = false;
    TORCH_CHECK(false, "reducer: the last backward did not finish: it threw, or is still running; ",
                MissingGradients());
  }
  for (auto& slot : slots_) slot.ready = false;
  for (auto& bucket : buckets_) {
    bucket.pending = bucket.parameters.size();
    bucket.work.reset();
  }
  next_bucket_ = 0;
  armed_ = true;
  started_ = false;
}

void BucketedReducer::MarkReady(size_t index) {
  std::lock_guard<std::mutex> lock(mutex_);
  if (!armed_) return;  // a backward that nobody asked to average, as in gradient accumulation
  Slot& slot = slots_[index];
  TORCH_CHECK(!slot.ready, "reducer: parameter ", slot.named.name,
              " got a second gradient in one backward; call PrepareForBackward before each backward");
  if (!started_) {
    started_ = true;
    torch::autograd::Engine::get_default_engine().queue_callback([this] { FinishBackward(); });
  }

  const at::NoGradGuard no_grad;
  const double factor = 1.0 / group_->getSize();
  at::Tensor& grad = slot.named.parameter.mutable_grad();
  TORCH_CHECK(grad.defined() && !grad.is_sparse(), "reducer: the gradient of ", slot.named.name,
              grad.defined() ? " is sparse, which is not supported" : " is not defined");
  if (grad.is_alias_of(slot.alias) && grad.data_ptr() == slot.alias.data_ptr()) {
    slot.alias.mul_(factor);
  } else {
    at::mul_out(slot.alias, grad, at::scalar_tensor(factor, grad.options().device(at::kCPU)));
    grad = slot.alias;
  }
  slot.ready = true;
  if (--buckets_[slot.bucket].pending == 0) LaunchReadyBuckets();
}

void BucketedReducer::LaunchReadyBuckets() {
  while (next_bucket_ < buckets_.size() && buckets_[next_bucket_].pending == 0) {
    Bucket& bucket = buckets_[next_bucket_++];
    std::vector<at::Tensor> tensors = {bucket.flat};
    bucket.work = group_->allreduce(tensors);
  }
}

void BucketedReducer::FinishBackward() {
  std::lock_guard<std::mutex> lock(mutex_);
  if (next_bucket_ < buckets_.size()) {
    for (auto& bucket : buckets_) bucket.work.reset();
    armed_ = started_ = false;
    TORCH_CHECK(false, "reducer: ", MissingGradients());
  }
  armed_ = started_ = false;
  for (auto& bucket : buckets_) {
    bucket.work->wait();
    bucket.work.reset();
  }
}

std::string BucketedReducer::MissingGradients() const {
  std::string names;
  int missing = 0;
  for (const auto& slot : slots_) {
    if (slot.ready || missing++ >= 10) continue;
    names += (names.empty() ? "" : ", ") + slot.named.name;
  }
  if (missing > 10) names += " and " + std::to_string(missing - 10) + " more";
  return "parameters without a gradient: " + names +
         "; each parameter must take part in every loss, or set requires_grad to false before the reducer is made";
}

}  // namespace lockstep
