#pragma once

#include <absl/status/statusor.h>

#include <string>
#include <vector>

namespace lockstep {

/// Indices from a list such as "2, 3" (spaces allowed); empty for an empty list. InvalidArgument names `flag` and what
/// is no index or stands twice.
absl::StatusOr<std::vector<int>> ParseDeviceList(const std::string& flag, const std::string& text);

}  // namespace lockstep
