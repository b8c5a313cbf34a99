#pragma once

#include <absl/status/statusor.h>
#include <torch/optim/optimizer.h>

#include <cstddef>
#include <vector>

#include "lockstep/checkpoint/value.h"
#include "lockstep/ddp/sharded_reducer.h"
#include "lockstep/ddp/sharded_state.h"

namespace lockstep::internal {

// Of an optimizer over the pieces of `reducer`, or over master weights of them, all pieces of a parameter in one group.

/// The parameters, by their numbers in the reducer, of which some rank has a piece in each group. Collective.
std::vector<std::vector<size_t>> GroupMembers(torch::optim::Optimizer& optimizer, const ShardedReducer& reducer);
/// ShardedState::WholeState.
absl::StatusOr<ShardedState::Whole> WholeOptimizerState(torch::optim::Optimizer& optimizer,
                                                        const ShardedReducer& reducer);
/// ShardedState::LoadWholeState.
absl::Status LoadWholeOptimizerState(const Value& state, const Value* master_weights,
                                     torch::optim::Optimizer& optimizer, const ShardedReducer& reducer,
                                     const std::vector<std::vector<size_t>>& members);

}  // namespace lockstep::internal
