#include "lockstep/launch/internal/host_name.h"

#include <unistd.h>

namespace lockstep {

std::string HostName() {
  char name[256] = "";
  gethostname(name, sizeof(name) - 1);
  return name;
}

}  // namespace lockstep
