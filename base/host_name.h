#pragma once

#include <string>

namespace lockstep {

/// This machine's; empty where the system doesn't say.
std::string HostName();

/// "::1" of "[::1]", as an IPv6 address is written where a port may follow; anything else as it is.
std::string WithoutBrackets(const std::string& host);

}  // namespace lockstep
