#include "lockstep/launch/internal/connections.h"

#include <absl/status/status.h>
#include <absl/strings/str_cat.h>
#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

namespace lockstep {

absl::StatusOr<int> ListenOn(int port, bool* in_use) {
  *in_use = false;
  const int on = 1, off = 0;
  sockaddr_in6 address6{};
  address6.sin6_family = AF_INET6;
  address6.sin6_port = htons(static_cast<uint16_t>(port));
  sockaddr_in address4{};
  address4.sin_family = AF_INET;
  address4.sin_port = htons(static_cast<uint16_t>(port));
  int error = 0;
  for (const int family : {AF_INET6, AF_INET}) {  // some systems have no IPv6
    const int fd = socket(family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0) continue;
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
    if (family == AF_INET6) setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof(off));
    const bool bound = family == AF_INET6 ? bind(fd, reinterpret_cast<sockaddr*>(&address6), sizeof(address6)) == 0
                                          : bind(fd, reinterpret_cast<sockaddr*>(&address4), sizeof(address4)) == 0;
    if (bound && listen(fd, 128) == 0) return fd;
    error = errno;
    close(fd);
    if (error == EADDRINUSE || error == EACCES) break;
  }
  *in_use = error == EADDRINUSE;
  return absl::UnavailableError(*in_use ? absl::StrCat("port ", port, " is in use; choose another one on all hosts")
                                        : absl::StrCat("port ", port, " can't be had: ", std::strerror(error)));
}

int TryConnect(const std::string& host, int port, std::string* why_not) {
  addrinfo hints{}, *found = nullptr;
  hints.ai_socktype = SOCK_STREAM;
  const int code =
      getaddrinfo(host == "localhost" ? "127.0.0.1" : host.c_str(), std::to_string(port).c_str(), &hints, &found);
  if (code != 0) {
    *why_not = gai_strerror(code);
    return -1;
  }
  int connected = -1;
  for (const addrinfo* address = found; address != nullptr && connected < 0; address = address->ai_next) {
    const int fd = socket(address->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0) continue;
    int error = connect(fd, address->ai_addr, address->ai_addrlen) == 0 ? 0 : errno;
    if (error == EINPROGRESS) {
      pollfd ready{fd, POLLOUT, 0};
      socklen_t size = sizeof(error);
      if (poll(&ready, 1, 1000) == 1) {
        getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &size);
      } else {
        error = ETIMEDOUT;
      }
    }
    if (error == 0) {
      connected = fd;
    } else {
      *why_not = std::strerror(error);
      close(fd);
    }
  }
  freeaddrinfo(found);
  return connected;
}

std::string LocalAddress(int fd) {
  sockaddr_storage address{};
  socklen_t size = sizeof(address);
  char text[NI_MAXHOST] = "";
  if (getsockname(fd, reinterpret_cast<sockaddr*>(&address), &size) == 0) {
    getnameinfo(reinterpret_cast<sockaddr*>(&address), size, text, sizeof(text), nullptr, 0, NI_NUMERICHOST);
  }
  const std::string result = text;
  return result.rfind("::ffff:", 0) == 0 ? result.substr(7) : result;  // IPv4 on a socket of both kinds
}

}  // namespace lockstep
