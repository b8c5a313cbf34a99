#pragma once

#include <absl/status/statusor.h>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include <chrono>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/comm/shm/internal/layout.h"
#include "lockstep/comm/shm/internal/segment.h"

namespace lockstep::shm {

/// The ranks of a group: a Unix socket to each, kept open, and everyone's RankMemory.
///
/// The socket carries file descriptors, which is what proves that two ranks share a kernel and a network namespace; it
/// ends when its process does, however that was, which is how a dead rank is noticed.
class Peers {
 public:
  /// Collective; the ranks meet in `store` and come to the same answer. FailedPrecondition, on all ranks, when some two
  /// ranks can't share memory; it says which and why. Unavailable when ranks don't come within `timeout`.
  /// `names`: see ShmBackendOptions.
  static absl::StatusOr<std::unique_ptr<Peers>> Connect(const c10::intrusive_ptr<c10d::Store>& store, int rank,
                                                        int world_size, std::chrono::milliseconds timeout,
                                                        std::vector<int> names = {});
  ~Peers();
  Peers(const Peers&) = delete;
  Peers& operator=(const Peers&) = delete;

  int rank() const { return rank_; }
  int size() const { return static_cast<int>(memories_.size()); }
  /// What `peer` is called in errors.
  int name(int peer) const { return names_.empty() ? peer : names_[peer]; }
  RankMemory& memory(int peer) { return *memories_[peer]; }
  RankMemory& mine() { return *memories_[rank_]; }

  /// Whether all ranks of the group can run at the same time.
  bool fit_cores() const { return fit_cores_; }

  /// Why `peer` will never come again, if so.
  std::optional<std::string> WhyGone(int peer);

  /// Tells the others that this rank gives up; the first reason stays, and that of the rank that was first.
  void Fail(const std::string& reason);
  /// Tells the others that this rank receives nothing any more.
  void Leave();

  /// News about a segment of shared memory: `fd` of a new one, or -1 for one that is gone.
  struct Message {
    uint64_t segment = 0;
    uint64_t bytes = 0;
  };
  /// Whether it went out; it doesn't when the peer's queue is full.
  bool Send(int peer, const Message& message, int fd);
  /// The next message, which the peer has already sent. Throws when it is gone.
  Message Receive(int peer, int* fd);

 private:
  Peers(int rank, int world_size, std::vector<int> names)
      : rank_(rank),
        names_(std::move(names)),
        sockets_(world_size, -1),
        processes_(world_size, -1),
        segments_(world_size),
        memories_(world_size) {}

  const int rank_;
  const std::vector<int> names_;
  std::vector<int> sockets_;
  std::vector<int> processes_;  // see OpenProcess
  std::vector<Segment> segments_;
  std::vector<RankMemory*> memories_;
  bool fit_cores_ = false;
  std::mutex fail_mutex_;
};

}  // namespace lockstep::shm
