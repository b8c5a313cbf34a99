#pragma once

#include <torch/csrc/distributed/c10d/comm.hpp>

#include <optional>

#include "lockstep/comm/collectives.h"

namespace lockstep {

/// A communication hook that averages buckets: as they are (Python's allreduce_hook), or in another dtype than the
/// gradients'. kHalf and kBFloat16 send half of what float gradients need (fp16_compress_hook and bf16_compress_hook);
/// kFloat sums half gradients without rounding after each addition.
///
/// A hook of your own is a subclass of `c10d::CommHookInterface` too. It gets gradients that nobody has divided yet.
class AllReduceHook : public c10d::CommHookInterface {
 public:
  explicit AllReduceHook(ProcessGroupPtr group, std::optional<at::ScalarType> dtype = std::nullopt);

  c10::intrusive_ptr<c10::ivalue::Future> runHook(c10d::GradBucket& bucket) override;
  at::Tensor parseHookResult(const c10::IValue& result) override;

 private:
  const ProcessGroupPtr group_;
  const std::optional<at::ScalarType> dtype_;
};

}  // namespace lockstep
