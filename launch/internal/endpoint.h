#pragma once

#include <optional>
#include <string>

namespace lockstep {

struct Endpoint {
  std::string host;
  int port = 0;
};

/// "HOST", "HOST:PORT", "[IPV6]:PORT". Nothing when it is none, or has no port and `default_port` is negative.
std::optional<Endpoint> ParseEndpoint(const std::string& text, int default_port);

/// Whether the name or address is one of this machine's.
bool IsThisMachine(const std::string& host);

}  // namespace lockstep
