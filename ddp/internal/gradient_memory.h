#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <vector>

namespace lockstep::internal {

/// Lets autograd make gradients where they are to be communicated from, which saves a copy of each.
///
/// While it is open, the CPU's allocator gives this thread, in backward, a place of a bucket when exactly that place's
/// size is asked for and it is wanted and free: most likely for the gradient. When it was for something else, nothing
/// is lost but the chance, as long as nobody writes to an occupied place. Only places of at least kLeastBytes take
/// part.
class GradientMemory {
 public:
  static constexpr size_t kLeastBytes = 64 << 10;
  static constexpr size_t kAlignment = 64;  ///< Of the allocator's memory.

  GradientMemory();
  ~GradientMemory();
  GradientMemory(const GradientMemory&) = delete;
  GradientMemory& operator=(const GradientMemory&) = delete;

  /// Place `index` is that of `alias`, a tensor over a part of a bucket; too small or unaligned ones are never lent.
  void SetPlace(size_t index, const at::Tensor& alias);
  /// Forgets all places; what is lent stays alive.
  void Clear();

  /// Whether place `index` may be lent from now on.
  void Want(size_t index, bool wanted);
  /// Whether a tensor that was made there is still alive.
  bool IsOccupied(size_t index) const;

  /// For this thread, until Close on the same one.
  void Open();
  void Close();

 private:
  struct State;
  const std::shared_ptr<State> state_;
};

}  // namespace lockstep::internal
