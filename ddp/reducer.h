#pragma once

#include <ATen/core/Tensor.h>

#include <optional>
#include <string>
#include <vector>

#include "lockstep/comm/collectives.h"

namespace lockstep {

struct NamedParameter {
  std::string name;
  at::Tensor parameter;
  bool sparse = false;  ///< Its gradients are sparse, as those of an embedding with `sparse(true)`.
};

/// Averages the gradients of a list of parameters over ranks. When a backward whose forward was announced with
/// PrepareForBackward returns, every parameter's `grad()` holds the average over all ranks of what each rank
/// accumulated.
///
/// Every rank calls the same functions in the same order. Errors are LibTorch's exceptions.
class Reducer {
 public:
  virtual ~Reducer() = default;

  /// Call after each forward whose backward shall be averaged. `outputs` are the tensors that the loss is made of;
  /// their backward is recognised by them. Without any, the next backward is taken for it, which must not begin
  /// with an activation checkpoint then. Throws when the last such
  /// backward did not come to its end.
  virtual void PrepareForBackward(const std::vector<at::Tensor>& outputs) = 0;

  /// Call instead after a forward whose gradients shall only be accumulated on this rank.
  virtual void PrepareForAccumulation(const std::vector<at::Tensor>& outputs) = 0;

  /// What this rank's gradients are multiplied by before they are summed, from the next backward on; nothing: one over
  /// the world size. With 0 they count as zeros, whatever they are. Ranks may have different weights, but all have one
  /// or none has.
  virtual void SetWeight(std::optional<double> weight) = 0;

  /// The group over which the gradients are spread, each rank having some of them; null: every rank has all.
  virtual ProcessGroupPtr shard_group() const { return nullptr; }

  /// Gives up the backward that is under way or still to come, as after an exception in it or in the loss: takes part
  /// in what the other ranks expect of it, and makes every rank throw `why`, naming this one. Does nothing when no
  /// backward is awaited.
  virtual void Abandon(const std::string& why) = 0;
};

}  // namespace lockstep
