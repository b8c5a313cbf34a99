#pragma once

#include <absl/status/status.h>
#include <ATen/core/Tensor.h>

#include <cstddef>
#include <string>
#include <vector>

#include "lockstep/comm/collectives.h"

namespace lockstep {

/// Keeps numbers of each step where they are, on their device, and looks at many together, so that no step waits.
class FiniteCheck {
 public:
  /// Steps and epochs count from 1. `name`: of the number, for the error, such as "loss". An undefined tensor stands
  /// for no number.
  void Add(size_t epoch, size_t step, std::string name, const at::Tensor& number);

  /// Of what was added since the last time: OK, or on every rank the error of the first step, and of the lowest rank in
  /// it, with a number that is not finite. Every rank has added as many, in the same order. Collective.
  absl::Status Check(const ProcessGroupPtr& group);

 private:
  struct Number {
    size_t epoch, step;
    std::string name;
    at::Tensor value;
  };
  std::vector<Number> numbers_;
};

}  // namespace lockstep
