#pragma once

#include <absl/status/status.h>

#include <cstddef>
#include <fstream>
#include <string>

namespace lockstep {

/// A file to which a run adds JSON objects, a line each, over all of its starts.
class JsonLines {
 public:
  /// Opens `path` for a run that begins in `first_epoch` after `steps_done` steps of it. What was before is kept; lines
  /// of what comes again, by their "epoch" and "step", are dropped, and what a crash has left of a line.
  absl::Status Open(const std::string& path, size_t first_epoch, size_t steps_done);

  /// Adds a line, and flushes it. After an error more may be tried.
  absl::Status Add(const std::string& line);

 private:
  std::string path_;
  std::ofstream file_;
};

}  // namespace lockstep
