#pragma once

#include <absl/status/status.h>
#include <absl/status/statusor.h>

#include "lockstep/checkpoint/value.h"

namespace lockstep {

/// Brings together what ranks have that hold different parts of one model, for checkpoints that know nothing of the
/// parts, and hands it out again.
class SplitState {
 public:
  virtual ~SplitState() = default;

  /// On rank 0, the whole model's state dict; elsewhere of no use. Collective.
  virtual absl::StatusOr<Value> WholeModel() = 0;
  /// On rank 0, the state of an optimizer over the whole model. Collective.
  virtual absl::StatusOr<Value> WholeOptimizer() = 0;

  /// Whether this rank finds its part of the model in it.
  virtual absl::Status CheckModel(const Value& whole) const = 0;
  virtual absl::Status LoadModel(const Value& whole) = 0;
  virtual absl::Status LoadOptimizer(const Value& whole) = 0;
};

}  // namespace lockstep
