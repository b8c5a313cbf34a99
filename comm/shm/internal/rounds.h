#pragma once

#include <c10/core/ScalarType.h>
#include <torch/csrc/distributed/c10d/Types.hpp>

#include <atomic>
#include <chrono>
#include <optional>
#include <string>

#include "lockstep/comm/shm/internal/layout.h"
#include "lockstep/comm/shm/internal/peers.h"

namespace lockstep::shm {

/// What a collective is, for those who take part in it and for its errors.
struct Call {
  Descriptor what;
  std::chrono::milliseconds timeout{0};
  bool may_spin = true;

  c10d::ReduceOp::RedOpType reduction() const { return static_cast<c10d::ReduceOp::RedOpType>(what.reduction); }
  c10::ScalarType dtype() const { return static_cast<c10::ScalarType>(what.dtype); }
  bool wanted_by(int rank) const { return what.root < 0 || what.root == rank; }
};

/// The only way in which ranks wait for each other in a collective: round by round. In a round each rank writes its
/// slot, publishes it, and waits until all others have published theirs; then it reads. There are two slots, used in
/// turn: who sees round r + 1 of all ranks knows that all have finished reading round r, so that slot is free again.
///
/// One thread at a time.
class Rounds {
 public:
  Rounds(Peers& peers, bool check_shapes) : peers_(peers), check_shapes_(check_shapes) {}

  /// Begins a collective and its first round; the call must stay until the collective's end.
  Slot& Begin(const Call& call);
  /// Begins a further round.
  Slot& Next() { return peers_.mine().slots[++round_ & 1]; }
  /// Where the round after this one will be; nobody reads it any more once PublishAndWait has returned.
  Slot& Upcoming() { return peers_.mine().slots[(round_ + 1) & 1]; }
  /// Publishes this round and waits for all others. Throws c10::DistBackendError when a rank is gone or gave up or time
  /// is up; it names the collective and the ranks.
  void PublishAndWait();
  /// Like the first PublishAndWait of a collective, and throws when the ranks don't do the same.
  void PublishAndCompare();
  const Slot& Of(int rank) { return peers_.memory(rank).slots[round_ & 1]; }

  /// Makes every wait, in any thread, throw.
  void Abort(const std::string& reason);

  /// "ALLREDUCE #12 (sum of float [3, 4])"
  static std::string Name(const Descriptor& descriptor);

 private:
  void Check();

  Peers& peers_;
  const bool check_shapes_;
  uint32_t round_ = 0;
  const Call* call_ = nullptr;
  std::optional<std::chrono::steady_clock::time_point> deadline_;  // once there was reason to look at the clock
  std::atomic<bool> aborted_{false};
};

}  // namespace lockstep::shm
