#pragma once

#include <cstdint>

#include "lockstep/data/transforms/transform.h"

namespace lockstep::transforms {

/// A window of `height` × `width`, anywhere, of pictures that have `padding` pixels of `fill` put around them first.
Transform RandomCrop(int64_t height, int64_t width, int64_t padding = 0, double fill = 0);

/// The window in the middle, as torchvision rounds it. Pictures that are smaller have zeros put around them.
Transform CenterCrop(int64_t height, int64_t width);

/// Mirrored left to right, with probability `p`.
Transform RandomHorizontalFlip(double p = 0.5);

}  // namespace lockstep::transforms
