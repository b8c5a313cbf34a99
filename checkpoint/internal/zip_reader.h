#pragma once

#include <absl/status/statusor.h>

#include <cstdint>
#include <map>
#include <memory>
#include <string>

#include "lockstep/checkpoint/internal/mapped_file.h"

namespace lockstep::internal {

/// The members of a zip file (PKWARE's APPNOTE.TXT 6.3.10, with zip64), stored or deflated. Sizes and offsets are
/// checked against the file's size before anything is read or allocated; what deflated members may become together is
/// bounded by 64 MiB and 32 times the file's size. Errors are InvalidArgument without the file's name.
class ZipReader {
 public:
  struct Member {
    size_t offset;  ///< Of its bytes in the file.
    uint64_t compressed, size;
    uint32_t crc;
    bool deflated;
  };
  /// A member's bytes, and what keeps them alive.
  struct Bytes {
    std::shared_ptr<void> owner;
    char* data;
    size_t size;
  };

  static absl::StatusOr<ZipReader> Open(std::shared_ptr<MappedFile> file);

  const std::map<std::string, Member>& members() const { return members_; }
  /// `verify`: compare the checksum. Of a stored member the bytes are those of the mapping itself.
  absl::StatusOr<Bytes> Read(const std::string& name, bool verify);

 private:
  explicit ZipReader(std::shared_ptr<MappedFile> file) : file_(std::move(file)) {}
  absl::Status ReadDirectory();

  std::shared_ptr<MappedFile> file_;
  std::map<std::string, Member> members_;
  uint64_t inflated_ = 0;
};

}  // namespace lockstep::internal
