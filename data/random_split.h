#pragma once

#include <absl/status/statusor.h>
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

namespace lockstep {

/// Indices 0…n−1 in parts of the given fractions, index for index as
/// `torch.utils.data.random_split(range(n), fractions, torch.Generator().manual_seed(seed))`: the lengths are rounded
/// down and what is left over goes one by one to the first parts. Each part is an int64 tensor.
/// Errors: InvalidArgument when the fractions aren't in [0, 1] with sum 1, or a part would be empty.
absl::StatusOr<std::vector<at::Tensor>> RandomSplit(int64_t n, const std::vector<double>& fractions, uint64_t seed);

}  // namespace lockstep
