#pragma once

#include <ATen/core/Tensor.h>

#include <unordered_set>
#include <vector>

namespace lockstep::internal {

/// Which tensors a backward will give gradients to.
struct Reached {
  std::unordered_set<c10::TensorImpl*> leaves;
  /// False when the graph has a part that is only made during backward (an activation checkpoint).
  bool complete = true;
};

/// Walks the graph behind `outputs` and adds what it finds to `reached`.
void FindReached(const std::vector<at::Tensor>& outputs, Reached& reached);

}  // namespace lockstep::internal
