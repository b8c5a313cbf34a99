#pragma once

#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include <chrono>
#include <memory>

namespace lockstep {

class FlightRecorder;

/// LibTorch's Gloo or NCCL backend with errors that say more: which collective, its number in the group, and which rank
/// is gone or did not come, from heartbeats through `store`. A rank that dies is noticed within 10 seconds by those who
/// wait for a collective on the CPU; on NCCL, where nobody waits, its own watchdog or the launcher acts. `recorder` may
/// be null. Collective.
c10::intrusive_ptr<c10d::Backend> WatchBackend(c10::intrusive_ptr<c10d::Backend> backend,
                                               const c10::intrusive_ptr<c10d::Store>& store,
                                               std::chrono::milliseconds timeout,
                                               std::shared_ptr<FlightRecorder> recorder);

}  // namespace lockstep
