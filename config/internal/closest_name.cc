#include "lockstep/config/internal/closest_name.h"

#include <algorithm>
#include <cstdint>
#include <numeric>

namespace lockstep::internal {
namespace {

constexpr size_t kLongest = 100;  // of a name that is compared

/// Insertions, deletions and replacements of a letter (Levenshtein).
size_t EditDistance(const std::string& a, const std::string& b) {
  std::vector<size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), size_t{0});
  for (size_t i = 0; i < a.size(); ++i) {
    size_t diagonal = row[0];
    row[0] = i + 1;
    for (size_t j = 0; j < b.size(); ++j) {
      const size_t replaced = diagonal + (a[i] == b[j] ? 0 : 1);
      diagonal = row[j + 1];
      row[j + 1] = std::min({replaced, row[j] + 1, row[j + 1] + 1});
    }
  }
  return row.back();
}

std::string LastPart(const std::string& name) { return name.substr(name.rfind('.') + 1); }

/// "wd" of "weight_decay"; nothing of a single word.
std::string Initials(const std::string& name) {
  std::string initials(name, 0, 1);
  for (size_t i = 1; i + 1 < name.size(); ++i) {
    if (name[i] == '_' || name[i] == '-') initials += name[i + 1];
  }
  return initials.size() > 1 ? initials : "";
}

/// Letters to change, or SIZE_MAX where the names are too far apart.
size_t Distance(const std::string& a, const std::string& b) {
  if (Initials(a) == b || Initials(b) == a) return 1;
  const size_t distance = EditDistance(a, b);
  return distance <= std::max<size_t>(1, std::min(a.size(), b.size()) / 3) ? distance : SIZE_MAX;
}

}  // namespace

std::string ClosestName(const std::string& name, const std::vector<std::string>& known) {
  if (LastPart(name).empty() || name.size() > kLongest) return "";
  std::string closest;
  size_t least = SIZE_MAX;
  for (const auto& candidate : known) {
    // A name of another map is a letter or two farther away.
    constexpr size_t kOtherMap = 2;
    const size_t last = Distance(LastPart(name), LastPart(candidate));
    const size_t distance = std::min(Distance(name, candidate), last == SIZE_MAX ? last : last + kOtherMap);
    if (distance >= least) continue;
    least = distance;
    closest = candidate;
  }
  return closest;
}

}  // namespace lockstep::internal
