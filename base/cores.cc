#include "lockstep/base/cores.h"

#include <sched.h>

#include <algorithm>
#include <cstddef>
#include <vector>

namespace lockstep {

int AvailableCores() {
  for (size_t most = CPU_SETSIZE; most <= (1 << 20); most *= 2) {  // the kernel's set may be larger than one of libc's
    std::vector<cpu_set_t> set(most / CPU_SETSIZE);
    const size_t bytes = set.size() * sizeof(cpu_set_t);
    if (sched_getaffinity(0, bytes, set.data()) == 0) return std::max(1, CPU_COUNT_S(bytes, set.data()));
  }
  return 1;
}

}  // namespace lockstep
