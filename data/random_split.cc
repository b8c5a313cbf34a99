#include "lockstep/data/random_split.h"

#include <absl/status/status.h>
#include <absl/strings/str_cat.h>
#include <absl/strings/str_join.h>
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Functions.h>

#include <cmath>

namespace lockstep {

absl::StatusOr<std::vector<at::Tensor>> RandomSplit(int64_t n, const std::vector<double>& fractions, uint64_t seed) {
  double sum = 0;
  bool valid = n >= 0 && !fractions.empty();
  for (double fraction : fractions) {
    valid = valid && fraction >= 0 && fraction <= 1;
    sum += fraction;
  }
  if (!valid || std::abs(sum - 1) > 1e-8) {
    return absl::InvalidArgumentError(
        absl::StrCat("split [", absl::StrJoin(fractions, ", "), "]: fractions must be from 0 to 1 and sum to 1"));
  }
  std::vector<int64_t> lengths;
  int64_t total = 0;
  for (double fraction : fractions) {
    lengths.push_back(static_cast<int64_t>(std::floor(static_cast<double>(n) * fraction)));
    total += lengths.back();
  }
  for (int64_t i = 0; i < n - total; ++i) ++lengths[i % lengths.size()];
  for (size_t i = 0; i < lengths.size(); ++i) {
    if (lengths[i] == 0) {
      return absl::InvalidArgumentError(absl::StrCat("split [", absl::StrJoin(fractions, ", "), "] of ", n,
                                                     " samples leaves part ", i + 1, " empty; give more samples"));
    }
  }
  auto generator = at::detail::createCPUGenerator(seed);
  return at::randperm(n, generator, at::kLong).split_with_sizes(lengths);
}

}  // namespace lockstep
