#include "lockstep/ddp/compress_hook.h"

#include <ATen/Functions.h>

namespace lockstep {

CompressHook::CompressHook(ProcessGroupPtr group, at::ScalarType dtype) : group_(std::move(group)), dtype_(dtype) {
  TORCH_CHECK(dtype == at::kHalf || dtype == at::kBFloat16 || dtype == at::kFloat,
              "CompressHook: gradients can be averaged in Half, BFloat16 or Float, not ", dtype);
}

c10::intrusive_ptr<c10::ivalue::Future> CompressHook::runHook(c10d::GradBucket& bucket) {
  at::Tensor buffer = bucket.getBuffer();
  TORCH_CHECK(!buffer.is_complex(), "CompressHook: gradients are ", buffer.scalar_type());
  // A copy also where the dtype is the same: the division must not be seen before the result is there.
  const at::Tensor compressed = buffer.to(dtype_, /*non_blocking=*/false, /*copy=*/true).div_(GetWorldSize(group_));
  std::vector<at::Tensor> tensors = {compressed};
  return group_->allreduce(tensors)->getFuture()->then(
      [buffer, compressed](c10::ivalue::Future& future) {
        future.value();  // throws what went wrong
        at::Tensor(buffer).copy_(compressed);
        return c10::IValue(buffer);
      },
      c10::TensorType::get());
}

at::Tensor CompressHook::parseHookResult(const c10::IValue& result) {
  return c10d::detail::parseCppCommHookResult(result);
}

}  // namespace lockstep
