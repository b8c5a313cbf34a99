#pragma once

#include <cstddef>

namespace lockstep::shm {

/// Anonymous memory that other processes can map: a memfd. It has no name anywhere, is bound by no file system's size,
/// and is gone with the last process that holds it.
class Segment {
 public:
  Segment() = default;
  /// New memory, zeroed, all of it reserved: a lack of memory is an error here and no SIGBUS later. Throws
  /// c10::DistBackendError that says what was asked for and what stood in the way.
  static Segment Create(size_t bytes);
  /// Memory that another process made; takes `fd` and closes it, also when it throws.
  static Segment Map(int fd, size_t bytes);
  ~Segment();
  Segment(Segment&& other) noexcept;
  Segment& operator=(Segment&& other) noexcept;

  char* data() const { return data_; }
  size_t bytes() const { return bytes_; }
  int fd() const { return fd_; }  ///< To be passed on; -1 after CloseFd and in Map's result.
  void CloseFd();
  /// Gives the pages back to the system at once, whoever else has them mapped.
  void Discard();

 private:
  char* data_ = nullptr;
  size_t bytes_ = 0;
  int fd_ = -1;
};

}  // namespace lockstep::shm
