#pragma once

#include <absl/status/statusor.h>

#include <string>

namespace lockstep {

/// The folders of a launch: `<log_dir>/<run>_XXXXXX/attempt_<N>/<local rank>/`, as torchrun has them. Where no log_dir
/// is given they are in the folder for temporary files, and go with the object unless they hold output.
class LogFiles {
 public:
  /// `keep`: output goes into them. /dev/null for log_dir: no folders at all. Unavailable when they can't be made.
  static absl::StatusOr<LogFiles> Create(const std::string& log_dir, const std::string& run, bool keep);

  LogFiles(LogFiles&& other) noexcept;
  LogFiles& operator=(LogFiles&& other) noexcept;
  ~LogFiles();

  /// Folder for what all ranks of a start have in common, made if it isn't there; empty where there are none.
  std::string Attempt(int restarts) const;
  /// Folder of a rank of it.
  std::string Rank(int restarts, int local_rank) const;

  const std::string& folder() const { return folder_; }

 private:
  LogFiles(std::string folder, bool temporary) : folder_(std::move(folder)), temporary_(temporary) {}

  std::string folder_;
  bool temporary_ = false;
};

}  // namespace lockstep
