#pragma once

#include <absl/status/statusor.h>

namespace lockstep {

/// A TCP port of this machine, kept for rank 0 to listen on: bound, so that the system gives it to nobody else, but
/// not listening, so that a store which sets SO_REUSEADDR (c10d's does) can. Among each other, those who reserve keep
/// apart by a Unix socket that is named after the port and vanishes with its owner.
class ReservedPort {
 public:
  /// 0: any free port. Unavailable when the port is in use.
  static absl::StatusOr<ReservedPort> Reserve(int port);

  ReservedPort(ReservedPort&& other) noexcept;
  ReservedPort& operator=(ReservedPort&& other) noexcept;
  ~ReservedPort();

  int port() const { return port_; }

 private:
  ReservedPort(int fd, int claim, int port) : fd_(fd), claim_(claim), port_(port) {}
  int fd_ = -1;
  int claim_ = -1;  // the Unix socket
  int port_ = 0;
};

}  // namespace lockstep
