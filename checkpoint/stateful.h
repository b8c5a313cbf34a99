#pragma once

#include <absl/status/status.h>

#include "lockstep/checkpoint/value.h"

namespace lockstep {

/// Something with a state of its own that belongs in a checkpoint.
class Stateful {
 public:
  virtual ~Stateful() = default;
  /// The state; whole on rank 0 at least. Every rank calls it: it may communicate.
  virtual Value SaveState() = 0;
  /// Takes over what rank 0's SaveState gave; the same on all ranks. InvalidArgument, and nothing is changed, when it
  /// doesn't fit.
  virtual absl::Status LoadState(const Value& state) = 0;
};

}  // namespace lockstep
