#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "lockstep/checkpoint/value.h"

namespace lockstep {

/// Copies of a state, in memory that is kept from one to the next.
class Snapshot {
 public:
  /// A copy of `state` on the CPU, in which tensors share storages as they do there. It is overwritten by the next
  /// Take. Waits for the devices.
  Value Take(const Value& state);

 private:
  std::vector<at::Tensor> buffers_;  // of storages, in the order in which the last Take came to them
};

}  // namespace lockstep
