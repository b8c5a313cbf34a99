#pragma once

#include <torch/csrc/distributed/c10d/Work.hpp>

#include <list>
#include <memory>
#include <mutex>
#include <string>

#include "lockstep/comm/liveness.h"

namespace lockstep {

/// Ends the sends and receives that come to nothing because the other rank is gone.
///
/// The wait for a collective can be cut into short ones, that for a send or receive over Gloo can't: when its time is
/// up, Gloo breaks the connections of all ranks. So a thread, one for all groups of this process, looks at the monitors
/// while others wait, and aborts what is in vain. Thread-safe.
class Lookout {
 public:
  static Lookout& OfThisProcess();
  Lookout(const Lookout&) = delete;
  Lookout& operator=(const Lookout&) = delete;

  /// Waits for a send or receive in the group that `monitor` is of. Throws as soon as it is known that the rank `peer`
  /// is gone (Looks::kAny: all the others), or that the host of the store is out of reach.
  bool Wait(LivenessMonitor& monitor, c10d::Work& work, int peer);

 private:
  struct Waiting {
    LivenessMonitor& monitor;
    c10d::Work& work;
    const int peer;
    bool is_new = true;
    std::unique_ptr<LivenessMonitor::Looks> looks;  // when it has lasted a while
    std::string in_vain;                            // why
  };
  Lookout() = default;
  ~Lookout() = delete;
  void Run();
  static void LookAt(Waiting& waiting);

  std::mutex mutex_;
  bool running_ = false;
  std::list<Waiting> waiting_;
};

}  // namespace lockstep
