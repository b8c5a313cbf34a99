#pragma once

#include <ATen/core/Tensor.h>

#include "lockstep/comm/collectives.h"

namespace lockstep {

/// Flags that any rank may raise and that all ranks see at the same call, without a wait in any: an answer is that of
/// the call before. Costs one small all-reduce a call, beside what comes between two calls.
class LaggingFlags {
 public:
  struct Flags {
    bool stop = false, save = false, end = false;
  };

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
