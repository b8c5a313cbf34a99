#include "lockstep/base/host_name.h"

#include <unistd.h>

namespace lockstep {

std::string HostName() {
  char name[256] = "";
  return gethostname(name, sizeof(name) - 1) == 0 ? name : "";
}

std::string WithoutBrackets(const std::string& host) {
  const bool in_brackets = host.size() > 2 && host.front() == '[' && host.back() == ']';
  return in_brackets ? host.substr(1, host.size() - 2) : host;
}

}  // namespace lockstep
