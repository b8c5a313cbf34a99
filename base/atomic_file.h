#pragma once

#include <absl/status/status.h>

#include <cstddef>
#include <string>

namespace lockstep {

/// A file that appears under its name whole or not at all: it is written beside it, flushed to the disk and renamed,
/// and the folder is flushed. A crash at any moment leaves the file that was there before, and the next one removes
/// what is beside it. Not thread-safe.
class AtomicFile {
 public:
  explicit AtomicFile(std::string path);
  /// Removes the temporary file if Commit was not reached.
  ~AtomicFile();
  AtomicFile(const AtomicFile&) = delete;
  AtomicFile& operator=(const AtomicFile&) = delete;

  /// Makes missing folders and opens the temporary file. Errors name the path and what the system says.
  absl::Status Open();
  absl::Status Write(const void* data, size_t size);
  absl::Status Commit();

 private:
  absl::Status Error(const std::string& what) const;

  const std::string path_;
  std::string temporary_;
  int fd_ = -1;
};

/// Writes `text` to `path` in that way.
absl::Status WriteFileAtomically(const std::string& path, const std::string& text);

}  // namespace lockstep
