#pragma once

#include <cstdint>
#include <string>

namespace lockstep::shm {

struct MemoryLimit {
  uint64_t free_bytes = 0;
  std::string name;  ///< What sets it: "the machine", or a control group's file.
};

/// How much memory this process may still take: the least of what the machine has and what its control groups allow.
/// What can't be read sets no limit.
MemoryLimit FreeMemory();

}  // namespace lockstep::shm
