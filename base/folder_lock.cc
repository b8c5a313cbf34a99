#include "lockstep/base/folder_lock.h"

#include <absl/strings/str_cat.h>
#include <fcntl.h>
#include <sys/file.h>

#include <filesystem>
#include <system_error>

namespace lockstep {

absl::Status LockFolder(const std::string& folder) {
  std::error_code ignored;
  std::filesystem::create_directories(folder, ignored);
  const int fd = open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);  // stays open
  if (fd < 0 || flock(fd, LOCK_EX | LOCK_NB) == 0) return absl::OkStatus();
  return absl::AlreadyExistsError(absl::StrCat("run folder ", folder, ": another run is using it"));
}

}  // namespace lockstep
