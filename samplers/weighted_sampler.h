#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "lockstep/samplers/pass_sampler.h"

namespace lockstep {

struct WeightedSamplerOptions {
  size_t num_samples = 0;   ///< In a pass; 0: as many as there are weights.
  bool replacement = true;  ///< Whether an index may come more than once.
  uint64_t seed = 0;        ///< The pass of epoch e is drawn with seed + e.
};

/// Draws index i with a probability in proportion to `weights[i]`, index for index as Python's
/// `torch.utils.data.WeightedRandomSampler` with a generator of that seed. Random transforms change an index that comes
/// several times in a pass in the same way each time.
class WeightedSampler : public PassSampler {
 public:
  /// Throws c10::Error for no weights, more than 2^24 of them (LibTorch's limit), one that is negative or not finite,
  /// only zeros; without replacement, for more samples than there are weights above 0.
  explicit WeightedSampler(const std::vector<double>& weights, WeightedSamplerOptions options = {});

 protected:
  Pass MakePass(size_t epoch) const override;

 private:
  at::Tensor weights_;
  WeightedSamplerOptions options_;
};

}  // namespace lockstep
