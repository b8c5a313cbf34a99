#include "lockstep/comm/internal/slurm_lists.h"

#include <absl/status/status.h>
#include <absl/strings/numbers.h>
#include <absl/strings/str_cat.h>
#include <absl/strings/str_split.h>

#include <algorithm>

#include "lockstep/base/status_macros.h"

namespace lockstep {
namespace {

constexpr size_t kMostHosts = 1 << 20;

absl::Status Wrong(const std::string& list, const std::string& what) {
  return absl::InvalidArgumentError(absl::StrCat("host list ", list, ": ", what));
}

/// The list's names, cut at the commas outside of brackets.
absl::StatusOr<std::vector<std::string>> Names(const std::string& list) {
  std::vector<std::string> names(1);
  bool inside = false;
  for (const char c : list) {
    if (c == '[' || c == ']') {
      if (inside == (c == '[')) return Wrong(list, absl::StrCat("a '", std::string(1, c), "' too many"));
      inside = !inside;
    }
    if (c == ',' && !inside) {
      names.emplace_back();
    } else {
      names.back() += c;
    }
  }
  if (inside) return Wrong(list, "a ']' is missing");
  return names;
}

/// "001-003,7": 001, 002, 003, 7.
absl::StatusOr<std::vector<std::string>> Numbers(const std::string& list, const std::string& ranges) {
  std::vector<std::string> numbers;
  for (const std::string& part : std::vector<std::string>(absl::StrSplit(ranges, ','))) {
    const std::vector<std::string> ends = absl::StrSplit(part, '-');
    uint64_t low = 0, high = 0;
    if (ends.size() > 2 || !absl::SimpleAtoi(ends.front(), &low) || !absl::SimpleAtoi(ends.back(), &high) ||
        low > high || high - low >= kMostHosts) {
      return Wrong(list, absl::StrCat("'", part, "' is no range of numbers"));
    }
    for (uint64_t n = low; n <= high; ++n) {
      std::string digits = std::to_string(n);
      // As many digits as the first of the range has.
      if (digits.size() < ends.front().size()) digits.insert(0, ends.front().size() - digits.size(), '0');
      numbers.push_back(digits);
    }
  }
  return numbers;
}

}  // namespace

absl::StatusOr<std::vector<std::string>> ExpandHostList(const std::string& list) {
  LOCKSTEP_ASSIGN_OR_RETURN(const auto names, Names(list));
  std::vector<std::string> hosts;
  for (const std::string& name : names) {
    if (name.empty()) return Wrong(list, "a host has no name");
    std::vector<std::string> expanded(1);
    for (size_t at = 0; at < name.size();) {
      std::vector<std::string> pieces;
      const size_t open = std::min(name.find('[', at), name.size());
      if (open > at) {
        pieces = {name.substr(at, open - at)};
        at = open;
      } else {
        const size_t close = name.find(']', at);
        LOCKSTEP_ASSIGN_OR_RETURN(pieces, Numbers(list, name.substr(at + 1, close - at - 1)));
        at = close + 1;
      }
      if (hosts.size() + expanded.size() * pieces.size() > kMostHosts) return Wrong(list, "too many hosts");
      std::vector<std::string> longer;
      for (const auto& begin : expanded) {
        for (const auto& piece : pieces) longer.push_back(begin + piece);
      }
      expanded = std::move(longer);
    }
    hosts.insert(hosts.end(), expanded.begin(), expanded.end());
  }
  return hosts;
}

absl::StatusOr<std::vector<int>> ExpandTaskCounts(const std::string& counts) {
  std::vector<int> tasks;
  for (const std::string& part : std::vector<std::string>(absl::StrSplit(counts, ','))) {
    std::string number = part;
    int times = 1, count = 0;
    bool good = true;
    if (const size_t open = part.find("(x"); open != std::string::npos) {
      good = part.back() == ')' && absl::SimpleAtoi(part.substr(open + 2, part.size() - open - 3), &times);
      number = part.substr(0, open);
    }
    if (!good || !absl::SimpleAtoi(number, &count) || count < 1 || times < 1 ||
        tasks.size() + static_cast<size_t>(times) > kMostHosts) {
      return absl::InvalidArgumentError(
          absl::StrCat("tasks per host ", counts, ": '", part, "' is not N or N(xTIMES)"));
    }
    tasks.insert(tasks.end(), static_cast<size_t>(times), count);
  }
  return tasks;
}

}  // namespace lockstep
