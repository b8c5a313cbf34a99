#pragma once

#include <absl/status/statusor.h>

#include <string_view>

namespace lockstep {

/// What becomes of a learning rate that was chosen for one rank. Gradients are averaged over ranks, so that N ranks
/// with the same batch size each take steps of the same length from a batch N times as large, and N times fewer of
/// them.
enum class LearningRateScaling {
  kNone,    ///< The rate as it is given, as in Python's DistributedDataParallel.
  kLinear,  ///< Times N (Goyal et al., arXiv:1706.02677, for SGD; with a warm-up).
  kSqrt,    ///< Times √N (Krizhevsky, arXiv:1404.5997; often better for Adam).
};

/// "none", "linear" or "sqrt"; InvalidArgument otherwise.
absl::StatusOr<LearningRateScaling> ParseLearningRateScaling(std::string_view text);

/// The rate for `world_size` ranks.
double ScaleLearningRate(double rate, int world_size, LearningRateScaling scaling);

}  // namespace lockstep
