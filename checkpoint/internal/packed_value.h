#pragma once

#include <absl/status/statusor.h>

#include <string>
#include <string_view>

#include "lockstep/checkpoint/value.h"

namespace lockstep::internal {

/// A value as bytes for another process: the size of its pickle, the pickle, the storages in their order.
/// InvalidArgument for a value that can't be saved.
absl::StatusOr<std::string> PackValue(const Value& value);
/// And back, on the CPU.
absl::StatusOr<Value> UnpackValue(std::string_view bytes);

}  // namespace lockstep::internal
