#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace lockstep {

/// Which samples a batch holds, for transforms that draw random numbers: what they draw for a sample depends on these
/// alone, and so not on the number of ranks and workers, nor on where a run was resumed.
struct BatchKeys {
  uint64_t seed = 0;
  size_t epoch = 0;
  std::vector<size_t> samples;  ///< Indices in the data set, in the batch's order.
  uint64_t stream = 0;          ///< Differs between the transforms of a chain.
};

}  // namespace lockstep
