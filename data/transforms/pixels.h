#pragma once

#include <vector>

#include "lockstep/data/transforms/transform.h"

namespace lockstep::transforms {

/// Floats, divided by `divisor`: uint8 pictures come to [0, 1].
Transform ToFloat(double divisor = 255);

/// (x − mean) / std of each channel, of floats. `mean` and `std` have as many numbers as there are channels, or one.
Transform Normalize(std::vector<double> mean, std::vector<double> std);

}  // namespace lockstep::transforms
