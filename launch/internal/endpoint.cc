#include "lockstep/launch/internal/endpoint.h"

#include <absl/strings/numbers.h>
#include <ifaddrs.h>
#include <netdb.h>
#include <netinet/in.h>
#include <unistd.h>

#include <cstring>

#include "lockstep/base/host_name.h"

namespace lockstep {
namespace {

bool SameAddress(const sockaddr* a, const sockaddr* b) {
  if (a == nullptr || b == nullptr || a->sa_family != b->sa_family) return false;
  if (a->sa_family == AF_INET) {
    return reinterpret_cast<const sockaddr_in*>(a)->sin_addr.s_addr ==
           reinterpret_cast<const sockaddr_in*>(b)->sin_addr.s_addr;
  }
  return a->sa_family == AF_INET6 && std::memcmp(&reinterpret_cast<const sockaddr_in6*>(a)->sin6_addr,
                                                 &reinterpret_cast<const sockaddr_in6*>(b)->sin6_addr, 16) == 0;
}

}  // namespace

std::optional<Endpoint> ParseEndpoint(const std::string& text, int default_port) {
  Endpoint endpoint;
  endpoint.port = default_port;
  std::string port;
  if (!text.empty() && text[0] == '[') {
    const size_t close = text.find(']');
    if (close == std::string::npos) return std::nullopt;
    endpoint.host = text.substr(1, close - 1);
    if (close + 1 < text.size()) {
      if (text[close + 1] != ':') return std::nullopt;
      port = text.substr(close + 2);
      if (port.empty()) return std::nullopt;
    }
  } else {
    const size_t colon = text.find(':');
    if (colon != std::string::npos && text.find(':', colon + 1) == std::string::npos) {
      port = text.substr(colon + 1);
      if (port.empty()) return std::nullopt;
    }
    // With several colons it is an IPv6 address without a port.
    endpoint.host = port.empty() ? text : text.substr(0, colon);
  }
  if (endpoint.host.empty()) return std::nullopt;
  if (!port.empty() && !absl::SimpleAtoi(port, &endpoint.port)) return std::nullopt;
  if (endpoint.port < 0 || endpoint.port > 65535) return std::nullopt;
  return endpoint;
}

bool IsThisMachine(const std::string& host) {
  if (host == "localhost" || host == HostName()) return true;
  addrinfo* found = nullptr;
  ifaddrs* interfaces = nullptr;
  if (getaddrinfo(host.c_str(), nullptr, nullptr, &found) != 0) return false;
  bool ours = false;
  if (getifaddrs(&interfaces) == 0) {
    for (const addrinfo* address = found; address != nullptr; address = address->ai_next) {
      for (const ifaddrs* one = interfaces; one != nullptr; one = one->ifa_next) {
        ours |= SameAddress(address->ai_addr, one->ifa_addr);
      }
    }
    freeifaddrs(interfaces);
  }
  freeaddrinfo(found);
  return ours;
}

}  // namespace lockstep
