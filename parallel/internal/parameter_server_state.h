#pragma once

#include <absl/status/status.h>
#include <absl/status/statusor.h>
#include <torch/nn/module.h>

#include <cstdint>
#include <vector>

#include "lockstep/checkpoint/value.h"
#include "lockstep/parallel/internal/parameter_server_model.h"

namespace lockstep::internal {

// A server's part of the state is {"tensors": by name, "state": of the optimizer, by parameter name, "options": of the
// groups, by group of the whole model, "steps"}. A whole one is a checkpoint, {"model", "optimizer", "steps"}, in
// Python's layout, whichever servers had its parts.

/// The tensors are the live ones. Of an optimizer whose state can't be saved it says why, under "unsaved".
Value PartState(const std::vector<ServedTensor>& tensors, const PartOptimizer& part, int64_t steps);

/// The parts' tensors become the model's own. InvalidArgument where a part has none of its kind.
absl::Status LoadTensors(const std::vector<Value>& parts, const ServedModel& model);

/// Of the whole optimizer, from the parts that have all parameters between them. InvalidArgument for one whose state
/// can't be saved.
absl::StatusOr<Value> WholeOptimizer(const std::vector<Value>& parts, const ServedModel& model);

/// The part's optimizer takes its share of a whole one's state. InvalidArgument, before anything is changed, when it
/// doesn't fit.
absl::Status LoadPartOptimizer(const Value& whole, const ServedModel& model, PartOptimizer& part);

}  // namespace lockstep::internal
