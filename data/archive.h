#pragma once

#include <absl/status/status.h>

#include <cstdint>
#include <string>

namespace lockstep {

/// What an archive may grow to; more is an error, whatever its size.
struct UnpackLimits {
  int64_t bytes = int64_t{1} << 40;
  int64_t files = 20'000'000;
};

/// Unpacks a tar file (plain, gzip, bzip2, xz) or a zip file into `folder`, which appears whole or not at all: it is
/// written beside it, flushed to the disk and renamed. A folder that is there already is left as it is. Processes that
/// do this at the same time don't disturb each other (the first to end wins), threads of one process do.
///
/// Files and folders only: a link, a device, an absolute path or one with `..` is refused. Owners, modes and times in
/// the archive are not taken over. Errors name the archive: NotFound; InvalidArgument for one that is damaged,
/// truncated or holds what is refused; ResourceExhausted past the limits or for a full disk; Unavailable with what the
/// system says.
absl::Status Unpack(const std::string& archive, const std::string& folder, const UnpackLimits& limits = {});

}  // namespace lockstep
