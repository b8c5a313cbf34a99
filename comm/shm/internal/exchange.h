#pragma once

#include <cstdint>
#include <vector>

#include "lockstep/comm/shm/internal/peers.h"
#include "lockstep/comm/shm/internal/rounds.h"
#include "lockstep/comm/shm/internal/tensor_memory.h"

namespace lockstep::shm {

/// How bytes move in a collective: the two patterns that all of them are made of. What is in shared memory on all ranks
/// is read where it is; else it goes through the slots, a piece a round, copied in by one rank while the others take
/// the piece before. Results are the same bits on all ranks: sources are taken in the order of the ranks, and each
/// element is reduced by one formula.
///
/// One thread at a time. Throws what Rounds throws.
class Exchange {
 public:
  Exchange(Peers& peers, Rounds& rounds, TensorMemory& memory) : peers_(peers), rounds_(rounds), memory_(memory) {}

  struct Block {
    char* data = nullptr;
    int64_t bytes = 0;
  };
  /// What a rank gives and takes in Pull.
  struct Plan {
    bool same = true;         ///< All take the same of me, give[0]; else rank r takes give[r].
    std::vector<Block> give;  ///< Empty: nothing.
    bool one_tensor = true;   ///< The blocks that I give lie one after the other.
    std::vector<Block> take;  ///< From each rank; empty: nothing.
    bool reduce = false;      ///< What is taken is reduced into take[0]; all have its size.
  };
  /// Every rank gives blocks and takes some of what the others give: broadcast, gather, scatter, all-to-all,
  /// reduce-scatter. What is taken may overwrite what is given.
  void Pull(const Call& call, const Plan& plan);

  /// In place: `data` of all ranks, of as many elements as the call says, reduced; on all of them, or on the call's
  /// root alone.
  void AllReduce(const Call& call, char* data);

  void Barrier(const Call& call);

 private:
  void PullApart(const Call& call, const Plan& plan);
  void AllReduceShared(const Call& call);
  void AllReducePieces(const Call& call, char* data);
  void Meet();
  void Finish();
  template <typename Predicate>
  bool AllRanks(const Predicate& predicate);

  Peers& peers_;
  Rounds& rounds_;
  TensorMemory& memory_;
};

}  // namespace lockstep::shm
