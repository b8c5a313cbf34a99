#include "lockstep/launch/internal/stream_choice.h"

#include <absl/status/status.h>
#include <absl/strings/numbers.h>
#include <absl/strings/str_cat.h>
#include <absl/strings/str_split.h>

#include <algorithm>
#include <vector>

namespace lockstep {

absl::StatusOr<StreamChoice> StreamChoice::Parse(const std::string& flag, const std::string& text) {
  const auto read = [](const std::string& number, int high, int* value) {
    return absl::SimpleAtoi(number, value) && *value >= 0 && *value <= high;
  };
  StreamChoice choice;
  if (text.find(':') == std::string::npos) {
    if (read(text, 3, &choice.all_)) return choice;
  } else {
    bool good = true;
    for (const std::string& part : std::vector<std::string>(absl::StrSplit(text, ','))) {
      const std::vector<std::string> pair = absl::StrSplit(part, ':');
      int rank = 0, streams = 0;
      good = good && pair.size() == 2 && read(pair[0], 1 << 20, &rank) && read(pair[1], 3, &streams) &&
             choice.some_.emplace(rank, streams).second;
    }
    if (good) return choice;
  }
  return absl::InvalidArgumentError(absl::StrCat(flag, "=", text,
                                                 ": want 0 (none), 1 (stdout), 2 (stderr) or 3 (both), or one for each "
                                                 "local rank as in 0:3,1:1"));
}

int StreamChoice::Of(int local_rank) const {
  const auto found = some_.find(local_rank);
  return found == some_.end() ? all_ : found->second;
}

bool StreamChoice::Any() const {
  return all_ != 0 || std::any_of(some_.begin(), some_.end(), [](const auto& entry) { return entry.second != 0; });
}

}  // namespace lockstep
