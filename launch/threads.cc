#include "lockstep/launch/threads.h"

#include <ATen/Parallel.h>
#include <sched.h>

#include <algorithm>
#include <cstdlib>

namespace lockstep {

int SetThreadsPerRank(int requested, int local_world_size) {
  int threads = requested;
  if (threads <= 0) {
    const char* value = std::getenv("OMP_NUM_THREADS");
    threads = value == nullptr ? 0 : std::atoi(value);
  }
  if (threads <= 0) {
    cpu_set_t set;
    const int cores = sched_getaffinity(0, sizeof(set), &set) == 0 ? CPU_COUNT(&set) : 1;
    threads = std::max(1, cores / std::max(1, local_world_size));
  }
  at::set_num_threads(threads);
  return threads;
}

}  // namespace lockstep
