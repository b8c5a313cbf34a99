#pragma once

#include <absl/status/statusor.h>

#include <cstddef>
#include <memory>
#include <string>

namespace lockstep::internal {

/// A file's bytes in memory, read when they are touched. What is written there is this process's own and not the
/// file's. Whoever holds a piece of it keeps the pointer.
class MappedFile {
 public:
  /// NotFound; InvalidArgument for what is no regular file or is empty; Unavailable with what the system says.
  static absl::StatusOr<std::shared_ptr<MappedFile>> Open(const std::string& path);
  ~MappedFile();
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;

  char* data() const { return data_; }
  size_t size() const { return size_; }

 private:
  MappedFile(char* data, size_t size) : data_(data), size_(size) {}
  char* const data_;
  const size_t size_;
};

/// Gives back those pages of a piece of memory that are a file's and unchanged: they are read again when they are
/// touched. Of other memory nothing is lost and nothing given back.
void ReleaseUnchanged(const void* data, size_t size);

}  // namespace lockstep::internal
