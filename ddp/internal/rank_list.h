#pragma once

#include <cstddef>
#include <string>
#include <vector>

namespace lockstep::internal {

/// "rank 1" or "ranks 0, 2".
inline std::string RankList(const std::vector<size_t>& ranks) {
  std::string text = ranks.size() == 1 ? "rank " : "ranks ";
  for (size_t i = 0; i < ranks.size(); ++i) text += (i > 0 ? ", " : "") + std::to_string(ranks[i]);
  return text;
}

}  // namespace lockstep::internal
