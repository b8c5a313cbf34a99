#pragma once

#include <cstdint>

namespace lockstep {

/// Bytes of this process that were in memory at once at most (resident, VmHWM), since ResetPeakMemory or its start.
int64_t PeakMemory();

/// Begins to measure anew. False where the system doesn't permit that: then PeakMemory stays what it is since the
/// start.
bool ResetPeakMemory();

}  // namespace lockstep
