#include "lockstep/comm/shm/internal/segment.h"

#include <c10/util/Exception.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <string>
#include <utility>

#include "lockstep/comm/shm/internal/memory_limit.h"

namespace lockstep::shm {
namespace {

[[noreturn]] void Refuse(size_t bytes, const std::string& why) {
  TORCH_CHECK_WITH(DistBackendError, false, "shm: could not get ", bytes, " bytes of shared memory: ", why);
  std::abort();
}

char* MapShared(int fd, size_t bytes) {
  void* data = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, fd, 0);
  return data == MAP_FAILED ? nullptr : static_cast<char*>(data);
}

}  // namespace

Segment Segment::Create(size_t bytes) {
  rlimit limit{};
  if (getrlimit(RLIMIT_FSIZE, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY && bytes > limit.rlim_cur) {
    Refuse(bytes, "the limit on file sizes (ulimit -f) is " + std::to_string(limit.rlim_cur) + " bytes");
  }
  // The kernel ends a process that goes beyond its control group's limit, so ask first.
  if (const MemoryLimit memory = FreeMemory(); bytes > memory.free_bytes) {
    Refuse(bytes, memory.name + " leaves " + std::to_string(memory.free_bytes));
  }
  Segment segment;
  segment.fd_ = memfd_create("lockstep", MFD_CLOEXEC);
  if (segment.fd_ < 0) Refuse(bytes, std::string("memfd_create: ") + std::strerror(errno));
  if (ftruncate(segment.fd_, static_cast<off_t>(bytes)) != 0) Refuse(bytes, std::strerror(errno));
  int error = 0;
  do {
    error = posix_fallocate(segment.fd_, 0, static_cast<off_t>(bytes));
  } while (error == EINTR);
  if (error != 0) Refuse(bytes, std::strerror(error));
  segment.data_ = MapShared(segment.fd_, bytes);
  if (segment.data_ == nullptr) Refuse(bytes, std::string("mmap: ") + std::strerror(errno));
  segment.bytes_ = bytes;
  return segment;
}

Segment Segment::Map(int fd, size_t bytes) {
  Segment segment;
  segment.data_ = MapShared(fd, bytes);
  const int error = errno;
  close(fd);
  if (segment.data_ == nullptr) Refuse(bytes, std::string("mmap of another rank's memory: ") + std::strerror(error));
  segment.bytes_ = bytes;
  return segment;
}

Segment::~Segment() {
  if (data_ != nullptr) munmap(data_, bytes_);
  CloseFd();
}

Segment::Segment(Segment&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)),
      bytes_(std::exchange(other.bytes_, 0)),
      fd_(std::exchange(other.fd_, -1)) {}

Segment& Segment::operator=(Segment&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(bytes_, other.bytes_);
  std::swap(fd_, other.fd_);
  return *this;
}

void Segment::CloseFd() {
  if (fd_ >= 0) close(std::exchange(fd_, -1));
}

void Segment::Discard() {
  if (fd_ >= 0) fallocate(fd_, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, static_cast<off_t>(bytes_));
}

}  // namespace lockstep::shm
