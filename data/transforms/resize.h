#pragma once

#include <cstdint>

#include "lockstep/data/transforms/transform.h"

namespace lockstep::transforms {

/// To `height` × `width`, bilinear, with antialias (a triangle filter as wide as the reduction), as torchvision's
/// `Resize`. uint8 pictures are rounded.
Transform Resize(int64_t height, int64_t width, bool antialias = true);

/// The shorter side to `shorter_side`, the other in proportion.
Transform ResizeShorterSide(int64_t shorter_side, bool antialias = true);

/// What Resize and then RandomCrop (without padding) make of floats, drawn as that RandomCrop draws, without the work
/// for what is cut away: two products with small matrices for each picture.
Transform ResizeAndRandomCrop(int64_t height, int64_t width, int64_t crop_height, int64_t crop_width);

}  // namespace lockstep::transforms
