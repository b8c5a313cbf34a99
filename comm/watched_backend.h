#pragma once

#include <torch/csrc/distributed/c10d/Backend.hpp>

#include <chrono>
#include <memory>

namespace lockstep {

class FlightRecorder;
class LivenessMonitor;

/// A Gloo, NCCL or hierarchical backend with errors that say more: which collective, its number in the group, and which
/// rank is gone or did not come, by `monitor`, of the group's ranks. A rank that dies is noticed within 10 seconds by
/// those who wait for a collective on the CPU, or for a send to it or a receive from it; `abort` ends such waits. On
/// NCCL, where nobody waits, its own watchdog or the launcher acts. `recorder` may be null. Collective.
c10::intrusive_ptr<c10d::Backend> WatchBackend(c10::intrusive_ptr<c10d::Backend> backend,
                                               std::shared_ptr<LivenessMonitor> monitor,
                                               std::chrono::milliseconds timeout,
                                               std::shared_ptr<FlightRecorder> recorder);

}  // namespace lockstep
