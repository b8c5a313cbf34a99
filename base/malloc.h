#pragma once

namespace lockstep {

/// Keeps large freed blocks in the process. glibc hands them back to the kernel at every training step and faults
/// them in again at the next one, which costs a convolution net's step about a quarter of its time. Call it first
/// thing in a trainer's main(). Values that the user set (MALLOC_MMAP_THRESHOLD_, MALLOC_TRIM_THRESHOLD_,
/// MALLOC_TOP_PAD_, MALLOC_ARENA_MAX, GLIBC_TUNABLES) are left alone.
void KeepFreedMemory();

}  // namespace lockstep
