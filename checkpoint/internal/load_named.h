#pragma once

#include <absl/status/status.h>
#include <absl/strings/str_cat.h>

#include <exception>
#include <string>

#include "lockstep/base/error_text.h"

namespace lockstep::internal {

/// What `load()`, which returns a StatusOr, gives, with `path` and what it is in its error. An exception, such as for
/// want of memory, is an InvalidArgument.
template <typename Load>
auto LoadNamed(const std::string& path, const Load& load, const char* kind = "checkpoint") -> decltype(load()) {
  const auto named = [&](absl::StatusCode code, const std::string& what) {
    return absl::Status(code, absl::StrCat(kind, " ", path, ": ", what));
  };
  try {
    auto loaded = load();
    if (loaded.ok()) return loaded;
    return named(loaded.status().code(), std::string(loaded.status().message()));
  } catch (const std::exception& e) {
    return named(absl::StatusCode::kInvalidArgument, FirstLine(e.what()));
  }
}

}  // namespace lockstep::internal
