#include "lockstep/samplers/subset_sampler.h"

#include <utility>

#include "lockstep/samplers/internal/permutation.h"

namespace lockstep {

SubsetSampler::SubsetSampler(std::vector<size_t> indices, SubsetSamplerOptions options)
    : indices_(std::move(indices)), options_(options) {}

PassSampler::Pass SubsetSampler::MakePass(size_t epoch) const {
  if (!options_.shuffle) return {indices_, {}};
  Pass pass;
  for (const size_t i : Permutation(indices_.size(), options_.seed + epoch)) pass.indices.push_back(indices_[i]);
  return pass;
}

}  // namespace lockstep
