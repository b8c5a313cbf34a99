#include "lockstep/launch/internal/console_writer.h"

#include <poll.h>
#include <signal.h>
#include <unistd.h>

#include <cerrno>
#include <utility>

namespace lockstep {

ConsoleWriter::ConsoleWriter(int fd, size_t most_bytes) : fd_(fd), most_bytes_(most_bytes) {
  // Signals are for the thread that looks after the ranks; a reader that has gone is an error of write, not a signal.
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  thread_ = std::thread([this] { Run(); });
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

ConsoleWriter::~ConsoleWriter() {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    ended_ = true;
  }
  changed_.notify_one();
  thread_.join();
}

void ConsoleWriter::Write(std::string lines) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (broken_) return;
  if (queued_ + lines.size() > most_bytes_) {
    left_out_ += lines.size();
    changed_.notify_one();
    return;
  }
  if (left_out_ > 0) lines = Gap() + lines;
  queued_ += lines.size();
  queue_.push_back(std::move(lines));
  changed_.notify_one();
}

/// The line about what was left out.
std::string ConsoleWriter::Gap() {
  return "lockstep: " + std::to_string(std::exchange(left_out_, 0)) +
         " bytes of output are left out here, which nobody read in time\n";
}

bool ConsoleWriter::broken() {
  const std::lock_guard<std::mutex> lock(mutex_);
  return broken_;
}

void ConsoleWriter::Run() {
  std::unique_lock<std::mutex> lock(mutex_);
  while (true) {
    changed_.wait(lock, [this] { return ended_ || !queue_.empty() || left_out_ > 0; });
    if (queue_.empty() && left_out_ > 0) {  // nothing may come after it that it could go with
      queue_.push_back(Gap());
      queued_ += queue_.back().size();
    }
    if (queue_.empty()) return;
    const std::string text = std::move(queue_.front());
    queue_.pop_front();
    lock.unlock();
    const bool written = WriteAll(text);
    lock.lock();
    queued_ -= text.size();
    if (!written) {
      broken_ = true;
      queue_.clear();
      queued_ = left_out_ = 0;
    }
  }
}

bool ConsoleWriter::WriteAll(const std::string& text) {
  size_t done = 0;
  while (done < text.size()) {
    const ssize_t n = write(fd_, text.data() + done, text.size() - done);
    if (n >= 0) {
      done += static_cast<size_t>(n);
    } else if (errno == EAGAIN) {  // somebody we share it with has made it non-blocking
      pollfd ready{fd_, POLLOUT, 0};
      poll(&ready, 1, -1);
    } else if (errno != EINTR) {
      return false;
    }
  }
  return true;
}

}  // namespace lockstep
