#include "lockstep/launch/threads.h"

#include <ATen/Parallel.h>

#include <algorithm>
#include <cstdlib>

#include "lockstep/base/cores.h"

namespace lockstep {

int SetThreadsPerRank(int requested, int local_world_size) {
  int threads = requested;
  if (threads <= 0) {
    const char* value = std::getenv("OMP_NUM_THREADS");
    threads = value == nullptr ? 0 : std::atoi(value);
  }
  if (threads <= 0) {
    threads = std::max(1, AvailableCores() / std::max(1, local_world_size));
  }
  at::set_num_threads(threads);
  return threads;
}

}  // namespace lockstep
