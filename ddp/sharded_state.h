#pragma once

#include <absl/status/statusor.h>

#include "lockstep/checkpoint/value.h"

namespace lockstep {

/// Says of an optimizer that its state is this rank's part of a whole.
class ShardedState {
 public:
  struct Whole {
    Value state;           ///< As OptimizerState gives it.
    Value master_weights;  ///< A list of tensors in the order of MasterWeights::copies; None without such.
  };

  virtual ~ShardedState() = default;
  /// The whole state, on rank 0: that of the same optimizer over the whole parameters, in each group in the reducer's
  /// order. A run may go on with it in a world of any size, sharded or not. Errors as OptimizerState's. Collective.
  virtual absl::StatusOr<Whole> WholeState() = 0;
  /// This rank takes its part of a whole state; null: master weights are made from the parameters. Errors as
  /// LoadOptimizerState's.
  virtual absl::Status LoadWholeState(const Value& state, const Value* master_weights) = 0;
};

}  // namespace lockstep
