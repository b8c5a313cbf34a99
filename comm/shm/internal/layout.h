#pragma once

#include <sched.h>

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>

#include "lockstep/comm/shm/internal/waiter.h"

// What lies in the memory of each rank, as all ranks of the host see it.
namespace lockstep::shm {

/// In a group.
constexpr int kMaxRanks = 1024;

/// What a rank is about to do: what the others need to know, and what they must have in common.
struct Descriptor {
  static constexpr int kMaxDims = 8;

  // In one cache line, since a small collective costs little more than the lines that go from core to core.
  uint64_t sequence = 0;  ///< Number of the collective in its group.
  uint8_t operation = 0;  ///< c10d::OpType
  uint8_t reduction = 0;  ///< c10d::ReduceOp, where there is one.
  int8_t dtype = -1;      ///< c10::ScalarType; -1 for none.
  bool inlined = false;   ///< All of my input is in this slot.
  bool shared = false;    ///< Nothing of my input has to be copied: it is in shared memory, or there is none.
  int32_t root = -1;
  uint32_t rounds = 0;    ///< How many rounds my input takes when it is copied.
  int64_t elements = 0;   ///< Of the tensor that must have the same number on all ranks; 0 where none must.
  uint64_t segment = 0;   ///< Number of the shared memory that my input is in; 0 for none.
  uint64_t offset = 0;    ///< Of my input in it, bytes.
  uint64_t messages = 0;  ///< How many messages about segments I have sent so far.

  uint64_t dims = 0;  ///< Number of dimensions; only the first kMaxDims are told.

  // Read when shapes are checked, and for errors.
  std::array<int64_t, kMaxDims> shape{};
};
static_assert(offsetof(Descriptor, shape) == 64);

/// Of each of the two slots. The two, in all ranks, should stay in a core's second-level cache.
constexpr size_t kPayloadBytes = 256 << 10;

struct alignas(64) Slot {
  Descriptor descriptor;
  alignas(64) char payload[kPayloadBytes];
};

/// A queue of bytes from one rank to another, for send and recv.
constexpr size_t kPipeBytes = 64 << 10;

struct Pipe {
  alignas(64) std::atomic<uint64_t> written{0};  ///< Bytes in all; by the sender.
  alignas(64) std::atomic<uint64_t> read{0};     ///< By the receiver.
  alignas(64) char bytes[kPipeBytes];
};

/// kLeaving: it receives nothing any more, and still sends what it has begun to send.
enum class RankState : uint32_t { kHere, kLeaving, kLeft, kFailed };

// Between processes an atomic must be no lock of one of them, and a futex is 32 bits.
static_assert(std::atomic<uint64_t>::is_always_lock_free && std::atomic<RankState>::is_always_lock_free);
static_assert(std::atomic<uint32_t>::is_always_lock_free && sizeof(std::atomic<uint32_t>) == 4);

struct RankMemory {
  uint64_t token = 0;  ///< Says to whoever has mapped this whose memory it is.
  cpu_set_t cores{};   ///< Where the rank may run.
  std::atomic<RankState> state{RankState::kHere};
  int32_t culprit = -1;    ///< Who failed first, if this rank failed because of it; else itself.
  char reason[1024] = {};  ///< Why it failed; written before the state.
  Counter round;           ///< The last round that this rank has published.
  Counter mail;            ///< Counts whatever others do to this rank's sends and receives.
  Slot slots[2];           ///< Round r is in slot r mod 2.

  Pipe* pipes() { return reinterpret_cast<Pipe*>(this + 1); }  ///< To each rank.
  static size_t Bytes(int world_size) { return sizeof(RankMemory) + sizeof(Pipe) * static_cast<size_t>(world_size); }
};

}  // namespace lockstep::shm
