#include "lockstep/checkpoint/internal/mapped_file.h"

#include <absl/status/status.h>
#include <absl/strings/str_cat.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <vector>

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

void ReleaseUnchanged(const void* data, size_t size) {
  const auto page = static_cast<uintptr_t>(sysconf(_SC_PAGESIZE));
  const uintptr_t begin = (reinterpret_cast<uintptr_t>(data) + page - 1) / page * page;
  const uintptr_t end = (reinterpret_cast<uintptr_t>(data) + size) / page * page;
  const int fd = begin < end ? open("/proc/self/pagemap", O_RDONLY | O_CLOEXEC) : -1;
  if (fd < 0) return;
  // A page that was written to is no longer the file's: https://docs.kernel.org/admin-guide/mm/pagemap.html
  constexpr uint64_t kOfFile = uint64_t{1} << 61;
  std::vector<uint64_t> pages(std::min<size_t>((end - begin) / page, 4096));
  for (uintptr_t at = begin; at < end;) {
    const size_t count = std::min<size_t>(pages.size(), (end - at) / page);
    const auto wanted = static_cast<ssize_t>(count * sizeof(uint64_t));
    if (pread(fd, pages.data(), static_cast<size_t>(wanted), static_cast<off_t>(at / page * sizeof(uint64_t))) !=
        wanted)
      break;
    for (size_t i = 0; i < count;) {
      size_t run = i;
      while (run < count && (pages[run] & kOfFile) != 0) ++run;
      if (run > i) madvise(reinterpret_cast<void*>(at + i * page), (run - i) * page, MADV_DONTNEED);
      i = run + 1;
    }
    at += count * page;
  }
  close(fd);
}

}  // namespace lockstep::internal
