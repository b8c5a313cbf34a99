#include "lockstep/base/malloc.h"

#include <malloc.h>

#include <cstdlib>
#include <initializer_list>

namespace lockstep {

void KeepFreedMemory() {
  for (const char* name :
       {"MALLOC_MMAP_THRESHOLD_", "MALLOC_TRIM_THRESHOLD_", "MALLOC_TOP_PAD_", "MALLOC_ARENA_MAX", "GLIBC_TUNABLES"}) {
    if (std::getenv(name) != nullptr) return;
  }
  constexpr int kMiB = 1 << 20;
  mallopt(M_MMAP_THRESHOLD, 1024 * kMiB);
  mallopt(M_TRIM_THRESHOLD, 2047 * kMiB);
  mallopt(M_TOP_PAD, 16 * kMiB);
}

}  // namespace lockstep
