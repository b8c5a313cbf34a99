#pragma once

#include <absl/status/status.h>

#include <string>

namespace lockstep {

/// Makes a folder and keeps it for this process, so that one run at a time uses it: AlreadyExists, naming the folder,
/// while another process has it. The lock is on the folder itself, leaves no file and ends with the process. What else
/// is wrong with the folder shows when it is used.
absl::Status LockFolder(const std::string& folder);

}  // namespace lockstep
