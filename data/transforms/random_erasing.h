#pragma once

#include <utility>

#include "lockstep/data/transforms/transform.h"

namespace lockstep::transforms {

struct RandomErasingOptions {
  double p = 0.5;                               ///< Probability for each picture.
  std::pair<double, double> scale{0.02, 0.33};  ///< Part of the picture's area.
  std::pair<double, double> ratio{0.3, 3.3};    ///< Height over width.
  double value = 0;                             ///< What the rectangle is filled with.
  bool noise = false;                           ///< Fill with standard normal numbers instead (floats only).
};

/// Erases a rectangle of a picture (Zhong et al., arXiv:1708.04896), drawn as torchvision's `RandomErasing` draws it.
Transform RandomErasing(const RandomErasingOptions& options = {});

}  // namespace lockstep::transforms
