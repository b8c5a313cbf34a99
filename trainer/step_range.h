#pragma once

#include <absl/status/statusor.h>

#include <cstddef>
#include <string>

namespace lockstep {

/// Steps of a training, counted from 1 where it starts or goes on, both ends included.
struct StepRange {
  size_t first = 0, last = 0;
};

/// "FIRST:LAST"; InvalidArgument for anything else.
absl::StatusOr<StepRange> ParseStepRange(const std::string& text);

}  // namespace lockstep
