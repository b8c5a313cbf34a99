#pragma once

#include <absl/status/statusor.h>
#include <torch/optim/optimizer.h>

#include <cstddef>
#include <vector>

#include "lockstep/checkpoint/value.h"
#include "lockstep/ddp/sharded_reducer.h"

namespace lockstep {

/// Says of an optimizer that its state is this rank's part of a whole.
class ShardedState {
 public:
  virtual ~ShardedState() = default;
  /// The whole state, on rank 0, as OptimizerState gives it of the same optimizer over the whole parameters: a run may
  /// go on with it in a world of any size, sharded or not. Errors as OptimizerState's. Collective.
  virtual absl::StatusOr<Value> WholeState() const = 0;
  /// This rank takes its part of a whole state. Errors as LoadOptimizerState's.
  virtual absl::Status LoadWholeState(const Value& state) = 0;
};

// Of an optimizer over the pieces of `reducer`, all pieces of a parameter in one group.

/// The parameters, by their numbers in the reducer, of which some rank has a piece in each group. Collective.
std::vector<std::vector<size_t>> GroupMembers(const torch::optim::Optimizer& optimizer, const ShardedReducer& reducer);
/// ShardedState::WholeState.
absl::StatusOr<Value> WholeOptimizerState(const torch::optim::Optimizer& optimizer, const ShardedReducer& reducer);
/// ShardedState::LoadWholeState.
absl::Status LoadWholeOptimizerState(const Value& state, torch::optim::Optimizer& optimizer,
                                     const ShardedReducer& reducer, const std::vector<std::vector<size_t>>& members);

}  // namespace lockstep
