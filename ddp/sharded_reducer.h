#pragma once

#include <string>
#include <vector>

#include "lockstep/comm/collectives.h"
#include "lockstep/ddp/internal/reduce_at_end.h"
#include "lockstep/ddp/reducer.h"

namespace lockstep {

/// Averages gradients so that each rank has a part of them, its shard, for a ShardedOptimizer: the first stage of ZeRO
/// (Rajbhandari et al., arXiv:1910.02054). After a backward the parameters themselves have no gradient; those of this
/// rank's shard are in shard().
///
/// The parameters move into one block of memory for each dtype, cut into as many parts as there are ranks. A shard is
/// made of the pieces of parameters that lie in this rank's part. A parameter without a gradient counts as zero. No
/// sparse gradients; parameters that are frozen or unfrozen later are not noticed.
class ShardedReducer : public internal::ReduceAtEnd {
 public:
  /// A piece of a parameter: flat, a tensor of its own over the parameter's memory, with a gradient of its own.
  struct Piece {
    at::Tensor tensor;
    size_t parameter;       ///< Index into the parameters that need a gradient.
    int64_t begin, length;  ///< Elements of it, in the order of its memory.
  };

  /// As BucketedReducer's.
  ShardedReducer(std::vector<NamedParameter> parameters, ProcessGroupPtr group);

  /// The parameters that need a gradient.
  using ReduceAtEnd::parameters;
  const std::vector<Piece>& shard() const { return shard_; }
  ProcessGroupPtr shard_group() const override { return group(); }

  /// Every rank's pieces on all ranks. Collective.
  void GatherParameters();

 private:
  /// The parameters of one dtype and device.
  struct Block {
    std::vector<size_t> members;
    std::vector<int64_t> offsets;  ///< Of the members.
    at::Tensor parameters;         ///< Of all ranks; a multiple of the world size long.
    at::Tensor gradients;          ///< Of this rank's part.
  };

  void Reduce(const std::string& problem) override;

  std::vector<Block> blocks_;
  std::vector<Piece> shard_;
};

}  // namespace lockstep
