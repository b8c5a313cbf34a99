#include "lockstep/base/atomic_file.h"

#include <absl/strings/numbers.h>
#include <absl/strings/str_cat.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstring>
#include <ctime>
#include <filesystem>
#include <system_error>

namespace lockstep {
namespace {

std::string Folder(const std::string& path) {
  const auto folder = std::filesystem::path(path).parent_path().string();
  return folder.empty() ? "." : folder;
}

/// Over the limit of a file's size (ulimit -f) a write fails, as on a full disk; the signal that comes with it would
/// end the process.
class NoFileSizeSignal {
 public:
  NoFileSizeSignal() {
    sigemptyset(&signal_);
    sigaddset(&signal_, SIGXFSZ);
    pthread_sigmask(SIG_BLOCK, &signal_, &before_);
  }
  ~NoFileSizeSignal() {
    if (sigismember(&before_, SIGXFSZ) == 1) return;
    const int error = errno;
    const timespec at_once{};
    sigtimedwait(&signal_, nullptr, &at_once);
    pthread_sigmask(SIG_SETMASK, &before_, nullptr);
    errno = error;
  }

 private:
  sigset_t signal_, before_;
};

/// Of the files beside `path` that AtomicFile calls `path`.tmp.PID, those whose process has ended without removing
/// them.
void RemoveLeftovers(const std::string& path) {
  namespace fs = std::filesystem;
  const std::string begin = fs::path(path).filename().string() + ".tmp.";
  std::error_code ignored;
  for (const auto& entry : fs::directory_iterator(Folder(path), ignored)) {
    const std::string name = entry.path().filename().string();
    int pid = 0;
    if (name.rfind(begin, 0) != 0 || !absl::SimpleAtoi(name.substr(begin.size()), &pid) || pid <= 0) continue;
    if (kill(pid, 0) != 0 && errno == ESRCH) fs::remove(entry.path(), ignored);
  }
}

}  // namespace

AtomicFile::AtomicFile(std::string path) : path_(std::move(path)) {}

AtomicFile::~AtomicFile() {
  if (fd_ >= 0) close(fd_);
  if (!temporary_.empty()) unlink(temporary_.c_str());
}

absl::Status AtomicFile::Error(const std::string& what) const {
  const int error = errno;
  const std::string text = absl::StrCat("file ", path_, ": cannot ", what, ": ", std::strerror(error));
  return error == ENOSPC || error == EDQUOT || error == EFBIG ? absl::ResourceExhaustedError(text)
                                                              : absl::UnavailableError(text);
}

absl::Status AtomicFile::Open() {
  std::error_code error;
  std::filesystem::create_directories(Folder(path_), error);
  if (error) {
    errno = error.value();
    return Error("make its folder");
  }
  RemoveLeftovers(path_);
  temporary_ = absl::StrCat(path_, ".tmp.", getpid());
  fd_ = open(temporary_.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
  if (fd_ < 0) {
    temporary_.clear();
    return Error("be written");
  }
  return absl::OkStatus();
}

absl::Status AtomicFile::Write(const void* data, size_t size) {
  const NoFileSizeSignal guard;
  const char* p = static_cast<const char*>(data);
  while (size > 0) {
    const ssize_t n = write(fd_, p, size);
    if (n < 0) {
      if (errno == EINTR) continue;
      return Error("be written");
    }
    p += n;
    size -= n;
  }
  return absl::OkStatus();
}

absl::Status AtomicFile::Commit() {
  if (fsync(fd_) != 0) return Error("be flushed");
  const int closed = close(fd_);
  fd_ = -1;
  if (closed != 0) return Error("be closed");
  if (rename(temporary_.c_str(), path_.c_str()) != 0) return Error("be renamed into place");
  temporary_.clear();
  const int folder = open(Folder(path_).c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (folder >= 0) {
    fsync(folder);
    close(folder);
  }
  return absl::OkStatus();
}

absl::Status WriteFileAtomically(const std::string& path, const std::string& text) {
  AtomicFile file(path);
  absl::Status status = file.Open();
  if (status.ok()) status = file.Write(text.data(), text.size());
  if (status.ok()) status = file.Commit();
  return status;
}

}  // namespace lockstep
