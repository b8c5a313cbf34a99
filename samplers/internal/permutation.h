#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace lockstep {

/// The numbers below `n` in the order of `torch.randperm(n)` with a generator of that seed.
std::vector<size_t> Permutation(size_t n, uint64_t seed);

}  // namespace lockstep
