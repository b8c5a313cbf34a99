#include "lockstep/ddp/all_reduce_hook.h"

#include <ATen/Functions.h>

#include "lockstep/ddp/internal/buckets.h"

namespace lockstep {

AllReduceHook::AllReduceHook(ProcessGroupPtr group, std::optional<at::ScalarType> dtype)
    : group_(std::move(group)), dtype_(dtype) {
  TORCH_CHECK(!dtype || *dtype == at::kHalf || *dtype == at::kBFloat16 || *dtype == at::kFloat,
              "AllReduceHook: gradients can be averaged in Half, BFloat16 or Float, not ", *dtype);
}

c10::intrusive_ptr<c10::ivalue::Future> AllReduceHook::runHook(c10d::GradBucket& bucket) {
  const at::Tensor buffer = bucket.getBuffer();
  TORCH_CHECK(!dtype_ || !buffer.is_complex(), "AllReduceHook: ", buffer.scalar_type(), " gradients can't be sent as ",
              *dtype_);
  const at::Tensor sent = (dtype_ ? buffer.to(*dtype_) : buffer).div_(GetWorldSize(group_));
  std::vector<at::Tensor> tensors = {internal::AsReal(sent)};
  return group_->allreduce(tensors)->getFuture()->then(
      [buffer, sent](c10::ivalue::Future& future) {
        future.value();  // throws what went wrong
        if (!sent.is_same(buffer)) buffer.copy_(sent);
        return c10::IValue(buffer);
      },
      c10::TensorType::get());
}

at::Tensor AllReduceHook::parseHookResult(const c10::IValue& result) {
  return c10d::detail::parseCppCommHookResult(result);
}

}  // namespace lockstep
