#pragma once

#include <cstdint>
#include <vector>

#include "lockstep/samplers/pass_sampler.h"

namespace lockstep {

struct SubsetSamplerOptions {
  bool shuffle = true;
  uint64_t seed = 0;  ///< The pass of epoch e is shuffled with seed + e.
};

/// Some indices of a data set: in their order, or shuffled, index for index as Python's
/// `torch.utils.data.SubsetRandomSampler` with a generator of that seed.
class SubsetSampler : public PassSampler {
 public:
  explicit SubsetSampler(std::vector<size_t> indices, SubsetSamplerOptions options = {});

 protected:
  Pass MakePass(size_t epoch) const override;

 private:
  std::vector<size_t> indices_;
  SubsetSamplerOptions options_;
};

}  // namespace lockstep
