#pragma once

#include <absl/status/statusor.h>

namespace lockstep {

/// A TCP port of this machine, kept for rank 0 to listen on: bound, so that the system gives it to nobody else, but
/// not listening, so that a store which sets SO_REUSEADDR (c10d's does) can.
class ReservedPort {
 public:
  /// 0: any free port. Unavailable when the port is in use.
  static absl::StatusOr<ReservedPort> Reserve(int port);

  ReservedPort(ReservedPort&& other) noexcept : fd_(other.fd_), port_(other.port_) { other.fd_ = -1; }
  ReservedPort& operator=(ReservedPort&& other) noexcept;
  ~ReservedPort();

  int port() const { return port_; }

 private:
  ReservedPort(int fd, int port) : fd_(fd), port_(port) {}
  int fd_;
  int port_;
};

}  // namespace lockstep
