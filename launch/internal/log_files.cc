#include "lockstep/launch/internal/log_files.h"

#include <absl/status/status.h>
#include <absl/strings/str_cat.h>
#include <stdlib.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <utility>

namespace lockstep {

namespace fs = std::filesystem;

absl::StatusOr<LogFiles> LogFiles::Create(const std::string& log_dir, const std::string& run, bool keep) {
  if (log_dir == "/dev/null") return LogFiles("", false);
  std::error_code error;
  const char* variable = getenv("TMPDIR");
  const bool is_set = variable != nullptr && *variable != '\0';
  // Ranks may go to another folder before they open a file here.
  const fs::path base = fs::absolute(!log_dir.empty() ? log_dir : is_set ? variable : "/tmp", error);
  const std::string named = !log_dir.empty() ? "--log_dir=" + log_dir
                            : is_set         ? absl::StrCat("TMPDIR=", variable)
                                             : "/tmp";
  if (!error && !log_dir.empty()) fs::create_directories(base, error);
  if (error) return absl::UnavailableError(absl::StrCat(named, ": the folder can't be made: ", error.message()));
  std::string name = run;  // any text, as the name of a folder
  std::replace(name.begin(), name.end(), '/', '_');
  std::string pattern = (base / absl::StrCat(log_dir.empty() ? "lockstep_" : "", name, "_XXXXXX")).string();
  if (mkdtemp(pattern.data()) == nullptr) {
    return absl::UnavailableError(absl::StrCat(named, ": no folder can be made in it: ", std::strerror(errno)));
  }
  return LogFiles(pattern, log_dir.empty() && !keep);
}

LogFiles::LogFiles(LogFiles&& other) noexcept { *this = std::move(other); }

LogFiles& LogFiles::operator=(LogFiles&& other) noexcept {
  std::swap(folder_, other.folder_);
  std::swap(temporary_, other.temporary_);
  return *this;
}

LogFiles::~LogFiles() {
  std::error_code ignored;
  if (temporary_) fs::remove_all(folder_, ignored);
}

std::string LogFiles::Attempt(int restarts) const {
  if (folder_.empty()) return "";
  const std::string path = absl::StrCat(folder_, "/attempt_", restarts);
  std::error_code ignored;  // whoever opens a file in it will notice
  fs::create_directories(path, ignored);
  return path;
}

std::string LogFiles::Rank(int restarts, int local_rank) const {
  if (folder_.empty()) return "";
  const std::string path = absl::StrCat(Attempt(restarts), "/", local_rank);
  std::error_code ignored;
  fs::create_directories(path, ignored);
  return path;
}

}  // namespace lockstep
