#pragma once

#include <ATen/core/Tensor.h>

#include <array>

#include "lockstep/comm/collectives.h"

namespace lockstep {

/// Flags that any rank may raise and that all ranks see in the same step, without a wait in any: an answer is that of
/// the step before. Costs one small all-reduce a step, beside the step.
class LaggingFlags {
 public:
  using Flags = std::array<bool, 2>;

  explicit LaggingFlags(ProcessGroupPtr group);

  /// What some rank said in the last call; nothing in the first. Collective.
  Flags Exchange(const Flags& mine);
  /// What some rank said in the last call, once; then as at the start. Collective.
  Flags Finish();

 private:
  const ProcessGroupPtr group_;
  at::Tensor flags_;
  WorkPtr work_;
};

}  // namespace lockstep
