#pragma once

#include <absl/status/status.h>

namespace lockstep {

/// What comes of a line that an observer could not write: std::runtime_error, or a warning. Nothing for OK.
void ThrowOrWarn(const absl::Status& written, bool failure_is_error);

}  // namespace lockstep
