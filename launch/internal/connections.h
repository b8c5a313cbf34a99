#pragma once

#include <absl/status/statusor.h>

#include <string>

namespace lockstep {

/// A socket that listens on the port on all addresses. Unavailable when the port is in use (`in_use` is set) or can't
/// be had.
absl::StatusOr<int> ListenOn(int port, bool* in_use);

/// One try to connect, of at most a second for each address; -1 and why not.
int TryConnect(const std::string& host, int port, std::string* why_not);

/// The address that this end of the connection has.
std::string LocalAddress(int fd);

}  // namespace lockstep
