#pragma once

#include <torch/csrc/distributed/c10d/Store.hpp>
#include <torch/csrc/distributed/c10d/Work.hpp>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace lockstep {

class Heart;

/// Tells which rank is to blame when a collective fails: a broken connection names an address at best.
///
/// Each rank counts a heartbeat up in the store, over a connection of its own, from a thread that all groups over this
/// store share. When a rank fails it leaves its reason in the store; a rank that was killed just stops counting.
/// Nothing here waits for a store that does not answer for longer than a few seconds. Thread-safe.
class LivenessMonitor {
  struct State;

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

  /// How many collectives this rank has begun; the others learn it with the next heartbeat.
  void SetProgress(uint64_t sequence);
  /// The ranks that have not begun as many, as far as is known; empty when the store doesn't answer.
  std::vector<int> Behind(uint64_t sequence);

  /// Waits for a collective on the CPU, and throws as soon as it is known that a rank is gone, or that the store has
  /// not answered for 8 seconds: then the host that holds it is out of reach.
  bool Wait(c10d::Work& work);

  /// Every Wait, those to come too, throws within a second.
  void Abort();

  /// While one lives, the others' heartbeats are watched.
  class Watch {
   public:
    explicit Watch(LivenessMonitor& monitor);
    ~Watch();
    Watch(const Watch&) = delete;
    Watch& operator=(const Watch&) = delete;
    /// The ranks that have not counted for 6 seconds, but for those of this host that are stopped and not dead: those
    /// may go on. Costs nothing.
    std::vector<int> Gone() const;

   private:
    const std::shared_ptr<State> state_;
  };

  /// What somebody looks at, every `kLook`, who waits for other ranks. Not thread-safe.
  class Looks {
   public:
    static constexpr std::chrono::milliseconds kLook{500};
    static constexpr int kAny = -1, kAll = -2;
    explicit Looks(LivenessMonitor& monitor) : monitor_(monitor), watch_(monitor) {}
    void Look();
    /// Why it is of no use, by the last look, to wait for the rank `whom`, all ranks or any of the others; else empty.
    std::string WhyInVain(int whom) const;

   private:
    LivenessMonitor& monitor_;
    const Watch watch_;
    std::vector<int> gone_;
    uint64_t answers_ = 0;
    int silent_ = 0;
  };

 private:
  std::atomic<bool> aborted_{false};
  std::shared_ptr<Heart> heart_;
  int64_t beat_ = -1;
  std::shared_ptr<State> state_;  // shared with threads that a silent store may hold up; null without a store
};

/// Whether an exception's text is that of a broken or timed-out collective.
bool IsCommunicationError(const std::string& text);

}  // namespace lockstep
