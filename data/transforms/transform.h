#pragma once

#include <functional>
#include <vector>

#include "lockstep/data/batch_keys.h"
#include "lockstep/data/tensor_batch.h"

namespace lockstep::transforms {

/// Changes a whole batch, on the device where it is. Pictures are (N, C, H, W): uint8 from 0 to 255, or floats. A
/// random transform draws for each sample from what the keys say (SampleRandom), so that number of workers, number of
/// ranks and resuming change nothing (but for what MixUp and CutMix mix a sample with); a sample that comes twice in an
/// epoch is changed in the same way. What doesn't fit throws c10::Error. Safe to call from several threads at once.
using Transform = std::function<TensorBatch(TensorBatch, const BatchKeys&)>;

/// One after the other. Each draws other random numbers, also of two of the same kind.
Transform Compose(std::vector<Transform> chain);

}  // namespace lockstep::transforms
