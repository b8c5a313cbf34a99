#pragma once

#include <absl/status/statusor.h>

#include <string>

#include "lockstep/checkpoint/value.h"

namespace lockstep {

/// Writes `value` as the zip file that Python's `torch.load(path, weights_only=True)` reads. The file appears whole or
/// not at all (see AtomicFile). Errors: Unavailable or ResourceExhausted with the path and what the system says,
/// InvalidArgument for a tensor that can't be saved.
absl::Status SavePth(const Value& value, const std::string& path);

/// Reads what SavePth wrote, and what Python's `torch.save` wrote of plain values, containers and tensors. All tensors
/// come to the CPU. Nothing in the file is executed. Errors: NotFound; InvalidArgument for a file that is truncated,
/// damaged or holds something that is not on the list of known globals.
absl::StatusOr<Value> LoadPth(const std::string& path);

}  // namespace lockstep
