#pragma once

#include <absl/status/statusor.h>
#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>

#include "lockstep/checkpoint/value.h"

namespace lockstep {

/// What a rank has of a step that is not finished, for checkpoints; see GradientStep.
struct GradientWindow {
  size_t steps = 0;    ///< Before it.
  size_t batches = 0;  ///< Of it so far; 0: the rest says nothing.
  size_t counted = 0;  ///< Those of them that count.
  int64_t samples = 0;
  size_t accumulate = 1;                        ///< Batches of a whole one.
  double scale = 1;                             ///< That losses were multiplied by.
  bool went_backward = false;                   ///< The gradients are of undivided losses.
  bool weight_by_samples = false;               ///< Whether they are sums over samples.
  at::Tensor loss;                              ///< The sum of those that count; undefined without any.
  std::map<std::string, at::Tensor> gradients;  ///< By the names of the module's parameters; dense or sparse.

  /// {"steps"}, and within a window an entry for each other member.
  Value ToValue() const;
  /// InvalidArgument for what is no such state.
  static absl::StatusOr<GradientWindow> FromValue(const Value& state);
};

}  // namespace lockstep
