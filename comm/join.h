#pragma once

#include <vector>

#include "lockstep/comm/collectives.h"

namespace lockstep {

/// Who still has batches, in one step of a Join. The same on all ranks but for `has_batch`.
struct JoinState {
  bool has_batch = true;     ///< This rank; if not, its batch counts for nothing.
  int ranks_with_batch = 1;  ///< At least one.
  int first_rank_with_batch = 0;
  bool divide_by_initial_world_size = true;
  bool is_last = false;  ///< No step comes after this one; known only where Next was told.
};

/// What takes part in a Join: something with collectives in forward or backward, which a rank without batches runs all
/// the same, with a batch that must not count.
class Joinable {
 public:
  virtual ~Joinable() = default;
  /// Before each step; null: from now on every rank has batches again.
  virtual void SetJoinState(const JoinState* state) = 0;
  /// All ranks are out of batches; `last` is the state of the last step. May communicate.
  virtual void OnJoinEnd(const JoinState& last) {}
};

struct JoinOptions {
  /// Gradients are divided by the world size throughout, so that each batch weighs the same; otherwise by the number
  /// of ranks that still have batches.
  bool divide_by_initial_world_size = true;
  /// All ranks stop when the first has no more batches.
  bool stop_with_first = false;
};

/// Training on a different number of batches per rank. A rank that has run out goes on through forward and backward
/// with a batch that counts for nothing (its last one, say), so that the ranks' collectives stay those of the model:
///
///     Join join({&ddp}, group);
///     while (true) {
///       auto next = loader.Next();
///       const Join::Step step = join.Next(next.has_value());
///       if (step == Join::Step::kEnd) break;
///       if (step == Join::Step::kBatch) batch = *next;  // else the last one again
///       ddp.forward(batch)…backward(); optimizer.step();
///     }
///
/// The optimizer steps on every rank in every step, so that parameters stay equal. Costs one small all-reduce a step. A
/// joinable is in one Join at a time.
class Join {
 public:
  enum class Step {
    kBatch,   ///< Train on the next batch.
    kShadow,  ///< Run a step on any batch of the usual shape; it counts for nothing.
    kEnd,     ///< No rank has batches, or with stop_with_first one has none.
  };

  /// The joinables outlive it. With a null group there is nothing to join.
  Join(std::vector<Joinable*> joinables, ProcessGroupPtr group, JoinOptions options = {});
  ~Join();
  Join(const Join&) = delete;
  Join& operator=(const Join&) = delete;

  /// Before each step; `has_next`: whether this rank has a batch after this one too, for is_last(). Collective.
  Step Next(bool has_batch, bool has_next = true);

  /// Whether the step that Next has just begun is the last one.
  bool is_last() const { return state_.is_last; }
  /// Whether every rank has a batch in that step.
  bool all_have_batches() const { return state_.ranks_with_batch == GetWorldSize(group_); }

 private:
  const std::vector<Joinable*> joinables_;
  const ProcessGroupPtr group_;
  const JoinOptions options_;
  JoinState state_;
};

}  // namespace lockstep
