#pragma once

#include <ATen/core/Tensor.h>

#include <string>
#include <vector>

namespace lockstep {

struct NamedParameter {
  std::string name;
  at::Tensor parameter;
};

/// Averages the gradients of a list of parameters over ranks. When a backward that PrepareForBackward announced
/// returns, every parameter's `grad()` holds the average over all ranks of what each rank accumulated.
///
/// Every rank calls the same functions in the same order. Errors are LibTorch's exceptions.
class Reducer {
 public:
  virtual ~Reducer() = default;
  /// Call before each forward whose backward shall be averaged. Throws when the last such backward left parameters
  /// without a gradient.
  virtual void PrepareForBackward() = 0;
};

}  // namespace lockstep
