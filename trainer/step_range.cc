#include "lockstep/trainer/step_range.h"

#include <absl/status/status.h>
#include <absl/strings/numbers.h>
#include <absl/strings/str_cat.h>
#include <absl/strings/str_split.h>

#include <cstdint>
#include <vector>

namespace lockstep {

absl::StatusOr<StepRange> ParseStepRange(const std::string& text) {
  const std::vector<std::string> parts = absl::StrSplit(text, ':');
  uint64_t first = 0, last = 0;
  if (parts.size() != 2 || !absl::SimpleAtoi(parts[0], &first) || !absl::SimpleAtoi(parts[1], &last) || first < 1 ||
      last < first) {
    return absl::InvalidArgumentError(
        absl::StrCat("'", text, "' is no range of steps: FIRST:LAST, counted from 1, as in 10:20"));
  }
  return StepRange{first, last};
}

}  // namespace lockstep
