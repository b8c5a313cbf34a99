#include "lockstep/optim/learning_rate.h"

#include <absl/strings/str_cat.h>

#include <cmath>
#include <string>

namespace lockstep {

absl::StatusOr<LearningRateScaling> ParseLearningRateScaling(std::string_view text) {
  if (text == "none") return LearningRateScaling::kNone;
  if (text == "linear") return LearningRateScaling::kLinear;
  if (text == "sqrt") return LearningRateScaling::kSqrt;
  return absl::InvalidArgumentError(
      absl::StrCat("unknown scaling '", std::string(text), "'; known: none, linear, sqrt"));
}

double ScaleLearningRate(double rate, int world_size, LearningRateScaling scaling) {
  switch (scaling) {
    case LearningRateScaling::kLinear: return rate * world_size;
    case LearningRateScaling::kSqrt: return rate * std::sqrt(static_cast<double>(world_size));
    case LearningRateScaling::kNone: break;
  }
  return rate;
}

}  // namespace lockstep
