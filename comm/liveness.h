#pragma once

#include <torch/csrc/distributed/c10d/Store.hpp>

#include <memory>
#include <string>

namespace lockstep {

/// Tells which rank is to blame when a collective fails: a broken connection names an address at best.
///
/// Each rank counts a heartbeat up in the store from a thread of its own, over a connection of its own. When a rank
/// fails it leaves its reason in the store; a rank that was killed just stops counting. Nothing here waits for a store
/// that does not answer for longer than a few seconds. Thread-safe.
class LivenessMonitor {
 public:
  /// `store` must be the store of the process group; null makes a monitor that knows nothing (a world of one).
  LivenessMonitor(const c10::intrusive_ptr<c10d::Store>& store, int rank, int world_size);
  ~LivenessMonitor();
  LivenessMonitor(const LivenessMonitor&) = delete;
  LivenessMonitor& operator=(const LivenessMonitor&) = delete;

  /// Call when this rank fails. `communication` says that the failure came out of a collective, so that it may be
  /// another rank's fault; then the peers' heartbeats are watched for up to 2 seconds. Returns one line: this rank's
  /// own reason, or which rank went and why. The reason is left in the store for the others.
  std::string Explain(const std::string& reason, bool communication);

 private:
  struct State;
  std::shared_ptr<State> state_;  // shared with threads that a silent store may hold up; null without a store
};

/// Whether an exception's text is that of a broken or timed-out collective.
bool IsCommunicationError(const std::string& text);

}  // namespace lockstep
