#include "lockstep/comm/internal/variables.h"

#include <absl/status/status.h>
#include <absl/strings/ascii.h>
#include <absl/strings/numbers.h>
#include <absl/strings/str_cat.h>

#include <cstdlib>

namespace lockstep {

std::string Variable(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : std::string(absl::StripAsciiWhitespace(value));
}

absl::StatusOr<int> NumberVariable(const char* name, int low, int high) {
  const std::string text = Variable(name);
  if (text.empty()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "environment: ", name, " is not set; a launcher (lockstep_run, torchrun) sets it, or set it by hand"));
  }
  int value = 0;
  if (!absl::SimpleAtoi(text, &value) || value < low || value > high) {
    return absl::InvalidArgumentError(
        absl::StrCat("environment: ", name, "=", text, " must be a number from ", low, " to ", high));
  }
  return value;
}

}  // namespace lockstep
