#pragma once

#include <cstdint>

#include "lockstep/data/transforms/transform.h"

namespace lockstep::transforms {

// Both mix each sample with the one before it in the batch (the first with the last), as torchvision's do; the part λ
// of its own is drawn for each sample from Beta(alpha, alpha). Targets, class indices (N) or probabilities
// (N, num_classes), become probabilities, which cross-entropy takes as they are.

/// λ · picture + (1 − λ) · other (Zhang et al., arXiv:1710.09412). Of floats.
Transform MixUp(double alpha, int64_t num_classes);

/// A rectangle of 1 − λ of the area is the other's (Yun et al., arXiv:1905.04899); where it reaches over the border,
/// the targets have the part that is really there.
Transform CutMix(double alpha, int64_t num_classes);

}  // namespace lockstep::transforms
