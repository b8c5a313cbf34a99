#pragma once

#include <string>

namespace lockstep {

/// This machine's; empty where the system doesn't say.
std::string HostName();

}  // namespace lockstep
