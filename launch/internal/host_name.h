#pragma once

#include <string>

namespace lockstep {

/// This machine's, for people.
std::string HostName();

}  // namespace lockstep
