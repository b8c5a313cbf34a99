#pragma once

namespace lockstep {

/// Sets how many threads LibTorch's operations use in this rank and returns the number: `requested` if it is over 0,
/// else OMP_NUM_THREADS, else the cores of this host ÷ `local_world_size`, at least 1.
int SetThreadsPerRank(int requested, int local_world_size);

}  // namespace lockstep
