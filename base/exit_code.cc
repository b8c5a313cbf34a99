#include "lockstep/base/exit_code.h"

#include <absl/strings/cord.h>

namespace lockstep {
namespace {

constexpr char kPayload[] = "lockstep/exit_code";

}  // namespace

absl::Status EndWithCode(int code, const std::string& message) {
  absl::Status status = absl::CancelledError(message);
  status.SetPayload(kPayload, absl::Cord(std::to_string(code)));
  return status;
}

std::optional<int> ExitCodeOf(const absl::Status& status) {
  const auto payload = status.GetPayload(kPayload);
  if (!payload) return std::nullopt;
  return std::stoi(std::string(*payload));
}

}  // namespace lockstep
