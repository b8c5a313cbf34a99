#pragma once

#include <utility>

#include "lockstep/data/transforms/transform.h"

namespace lockstep::transforms {

/// Ranges that factors are drawn from; {1, 1} ({0, 0} for the hue) leaves a property as it is.
struct ColorJitterOptions {
  std::pair<double, double> brightness{1, 1};  ///< Of the pixels' values.
  std::pair<double, double> contrast{1, 1};    ///< Of the distance from the mean grey.
  std::pair<double, double> saturation{1, 1};  ///< Of the distance from the pixel's grey; 0: grey pictures.
  std::pair<double, double> hue{0, 0};         ///< Is turned by this part of the circle, from −0.5 to 0.5.
};

/// Changes the colours of RGB floats in [0, 1], in an order that is drawn for each picture, as torchvision's
/// `ColorJitter`.
Transform ColorJitter(const ColorJitterOptions& options);

}  // namespace lockstep::transforms
