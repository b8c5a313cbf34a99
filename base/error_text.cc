#include "lockstep/base/error_text.h"

namespace lockstep {

std::string FirstLine(const std::string& text) {
  std::string line = text.substr(0, text.find('\n'));
  // A C++ exception of LibTorch may put the place on its first line.
  if (auto place = line.find(" (function operator"); place != std::string::npos) line.resize(place);
  return line;
}

}  // namespace lockstep
