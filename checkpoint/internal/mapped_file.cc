#include "lockstep/checkpoint/internal/mapped_file.h"

#include <absl/status/status.h>
#include <absl/strings/str_cat.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

namespace lockstep::internal {

absl::StatusOr<std::shared_ptr<MappedFile>> MappedFile::Open(const std::string& path) {
  const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (fd < 0) {
    if (errno == ENOENT || errno == ENOTDIR) return absl::NotFoundError("no such file");
    return absl::UnavailableError(absl::StrCat("cannot be opened: ", std::strerror(errno)));
  }
  struct stat info {};
  absl::Status status;
  void* data = MAP_FAILED;
  if (fstat(fd, &info) != 0) {
    status = absl::UnavailableError(std::strerror(errno));
  } else if (!S_ISREG(info.st_mode)) {
    status = absl::InvalidArgumentError("not a regular file");
  } else if (info.st_size == 0) {
    status = absl::InvalidArgumentError("the file is empty");
  } else {
    data = mmap(nullptr, static_cast<size_t>(info.st_size), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_NORESERVE, fd, 0);
    if (data == MAP_FAILED) status = absl::UnavailableError(absl::StrCat("cannot be mapped: ", std::strerror(errno)));
  }
  close(fd);
  if (!status.ok()) return status;
  return std::shared_ptr<MappedFile>(new MappedFile(static_cast<char*>(data), static_cast<size_t>(info.st_size)));
}

MappedFile::~MappedFile() { munmap(data_, size_); }

}  // namespace lockstep::internal
