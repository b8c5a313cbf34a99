#pragma once

#include <string>

namespace lockstep {

/// The first line of an exception's text: LibTorch's end in a C++ backtrace that is of no use to a user.
std::string FirstLine(const std::string& text);

}  // namespace lockstep
