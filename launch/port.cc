#include "lockstep/launch/port.h"

#include <absl/status/status.h>
#include <absl/strings/str_cat.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <cstring>
#include <string>
#include <utility>

namespace lockstep {
namespace {

/// Binds on all addresses of the family; -1 with errno when it can't.
int BindAny(int family, int port) {
  const int fd = socket(family, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (fd < 0) return -1;
  const int on = 1, off = 0;
  setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
  int bound;
  if (family == AF_INET6) {
    setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof(off));
    sockaddr_in6 address{};
    address.sin6_family = AF_INET6;
    address.sin6_port = htons(static_cast<uint16_t>(port));
    bound = bind(fd, reinterpret_cast<sockaddr*>(&address), sizeof(address));
  } else {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(static_cast<uint16_t>(port));
    bound = bind(fd, reinterpret_cast<sockaddr*>(&address), sizeof(address));
  }
  if (bound == 0) return fd;
  const int error = errno;
  close(fd);
  errno = error;
  return -1;
}

/// A socket in the abstract name space of this network; -1 with errno when it can't be had, EADDRINUSE when another
/// process has it.
int Claim(int port) {
  const int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (fd < 0) return -1;
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  const std::string name = absl::StrCat("lockstep/port/", port);
  std::memcpy(address.sun_path + 1, name.data(), name.size());
  if (bind(fd, reinterpret_cast<sockaddr*>(&address), offsetof(sockaddr_un, sun_path) + 1 + name.size()) == 0)
    return fd;
  const int error = errno;
  close(fd);
  errno = error;
  return -1;
}

}  // namespace

absl::StatusOr<ReservedPort> ReservedPort::Reserve(int port) {
  int fd = BindAny(AF_INET6, port);
  if (fd < 0 && errno != EADDRINUSE && errno != EACCES) fd = BindAny(AF_INET, port);  // no IPv6 here
  if (fd < 0) {
    return absl::UnavailableError(
        errno == EADDRINUSE ? absl::StrCat("port ", port, " is in use; choose another one, or 0 for a free one")
                            : absl::StrCat("port ", port, " can't be had: ", std::strerror(errno)));
  }
  sockaddr_storage address{};
  socklen_t size = sizeof(address);
  getsockname(fd, reinterpret_cast<sockaddr*>(&address), &size);
  const uint16_t number = address.ss_family == AF_INET6 ? reinterpret_cast<sockaddr_in6*>(&address)->sin6_port
                                                        : reinterpret_cast<sockaddr_in*>(&address)->sin_port;
  const int claim = Claim(ntohs(number));
  if (claim < 0 && errno == EADDRINUSE) {  // where there are no such sockets, the port itself must do
    close(fd);
    return absl::UnavailableError(
        absl::StrCat("port ", port, " is in use by another launcher; choose another one, or 0 for a free one"));
  }
  return ReservedPort(fd, claim, ntohs(number));
}

ReservedPort::ReservedPort(ReservedPort&& other) noexcept { *this = std::move(other); }

ReservedPort& ReservedPort::operator=(ReservedPort&& other) noexcept {
  std::swap(fd_, other.fd_);
  std::swap(claim_, other.claim_);
  std::swap(port_, other.port_);
  return *this;
}

ReservedPort::~ReservedPort() {
  if (fd_ >= 0) close(fd_);
  if (claim_ >= 0) close(claim_);
}

}  // namespace lockstep
