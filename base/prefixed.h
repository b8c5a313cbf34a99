#pragma once

#include <absl/status/status.h>
#include <absl/strings/str_cat.h>

#include <string>

namespace lockstep {

/// An error with `where` before its message; OK stays OK.
inline absl::Status Prefixed(const std::string& where, const absl::Status& status) {
  return status.ok() ? status : absl::Status(status.code(), absl::StrCat(where, std::string(status.message())));
}

}  // namespace lockstep
