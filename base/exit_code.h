#pragma once

#include <absl/status/status.h>

#include <optional>
#include <string>

namespace lockstep {

/// The end of a program that is no error, but not all there was to do: `message` tells people why.
absl::Status EndWithCode(int code, const std::string& message);

/// The code of such an end, nothing for any other status.
std::optional<int> ExitCodeOf(const absl::Status& status);

}  // namespace lockstep
