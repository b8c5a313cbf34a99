#pragma once

#include <torch/csrc/distributed/c10d/comm.hpp>

#include "lockstep/comm/collectives.h"

namespace lockstep {

/// A communication hook that averages buckets in another dtype than the gradients': kHalf and kBFloat16 send half of
/// what float gradients need (Python's fp16_compress_hook and bf16_compress_hook); kFloat sums half gradients without
/// the loss of rounding after each addition. Complex gradients are refused.
///
/// A hook of your own is a subclass of `c10d::CommHookInterface` too; LibTorch's `c10d::AllReduceCommHook` is the
/// simplest example. It gets gradients that nobody has divided yet.
class CompressHook : public c10d::CommHookInterface {
 public:
  CompressHook(ProcessGroupPtr group, at::ScalarType dtype);

  c10::intrusive_ptr<c10::ivalue::Future> runHook(c10d::GradBucket& bucket) override;
  at::Tensor parseHookResult(const c10::IValue& result) override;

 private:
  const ProcessGroupPtr group_;
  const at::ScalarType dtype_;
};

}  // namespace lockstep
