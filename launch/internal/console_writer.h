#pragma once

#include <condition_variable>
#include <cstddef>
#include <deque>
#include <mutex>
#include <string>
#include <thread>

namespace lockstep {

/// Writes to a file descriptor that may be slow or stand still, in a thread of its own, so that nobody waits for it but
/// the destructor. What doesn't fit into its memory is left out, and it says how much that was.
class ConsoleWriter {
 public:
  explicit ConsoleWriter(int fd, size_t most_bytes = size_t{64} << 20);
  ~ConsoleWriter();
  ConsoleWriter(const ConsoleWriter&) = delete;
  ConsoleWriter& operator=(const ConsoleWriter&) = delete;

  /// Whole lines.
  void Write(std::string lines);

  /// The reader has gone.
  bool broken();

 private:
  void Run();
  std::string Gap();
  bool WriteAll(const std::string& text);

  const int fd_;
  const size_t most_bytes_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::string> queue_;
  size_t queued_ = 0, left_out_ = 0;
  bool ended_ = false, broken_ = false;
  std::thread thread_;
};

}  // namespace lockstep
