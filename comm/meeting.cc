#include "lockstep/comm/meeting.h"

#include <absl/strings/str_cat.h>

#include <algorithm>
#include <cstdint>
#include <utility>

#include "lockstep/base/error_text.h"
#include "lockstep/base/status_macros.h"

namespace lockstep {

Meeting::Meeting(c10d::Store& store, std::string who, int rank, int world_size, Clock::time_point deadline,
                 std::vector<int> names)
    : store_(store),
      who_(std::move(who)),
      rank_(rank),
      world_size_(world_size),
      deadline_(deadline),
      names_(std::move(names)) {}

absl::StatusOr<std::vector<std::string>> Meeting::Exchange(const std::string& step, const std::string& mine) {
  const auto key = [&](int r) { return absl::StrCat(step, "/", r); };
  std::vector<std::string> all(world_size_);
  int waiting_for = rank_;
  try {
    store_.set(key(rank_), std::vector<uint8_t>(mine.begin(), mine.end()));
    for (int r = 0; r < world_size_; ++r) {
      waiting_for = r;
      const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(deadline_ - Clock::now());
      store_.wait({key(r)}, std::max(left, std::chrono::milliseconds(1)));
      const std::vector<uint8_t> bytes = store_.get(key(r));
      all[r].assign(bytes.begin(), bytes.end());
    }
  } catch (const std::exception& e) {
    std::string missing;
    try {
      for (int r = 0; r < world_size_; ++r) {
        if (!store_.check({key(r)})) absl::StrAppend(&missing, missing.empty() ? "" : ", ", Name(r));
      }
    } catch (const std::exception&) {
      missing = std::to_string(Name(waiting_for));  // the store is gone too
    }
    return absl::UnavailableError(absl::StrCat(who_, ": of ", world_size_, " ranks these did not come: ", missing, " (",
                                               FirstLine(e.what()), ")"));
  }
  return all;
}

absl::Status Meeting::Agree(const std::string& step, const std::string& problem) {
  LOCKSTEP_ASSIGN_OR_RETURN(const std::vector<std::string> all, Exchange(step, problem.empty() ? "ok" : problem));
  for (int r = 0; r < world_size_; ++r) {
    if (all[r] != "ok") return absl::FailedPreconditionError(absl::StrCat(who_, ": rank ", Name(r), ": ", all[r]));
  }
  return absl::OkStatus();
}

}  // namespace lockstep
