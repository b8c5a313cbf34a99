#include "lockstep/samplers/internal/permutation.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Functions.h>

namespace lockstep {

std::vector<size_t> Permutation(size_t n, uint64_t seed) {
  auto generator = at::detail::createCPUGenerator(seed);
  const at::Tensor permutation = at::randperm(static_cast<int64_t>(n), generator, at::kLong);
  const auto* const values = permutation.const_data_ptr<int64_t>();
  return {values, values + n};
}

}  // namespace lockstep
