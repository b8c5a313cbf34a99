#pragma once

#include <absl/status/statusor.h>

#include <string>

namespace lockstep {

/// Of the environment, without blanks around it, which come out of scripts; empty when it is not set.
std::string Variable(const char* name);

/// A number from low to high; InvalidArgument names the variable that is missing or wrong.
absl::StatusOr<int> NumberVariable(const char* name, int low, int high);

}  // namespace lockstep
