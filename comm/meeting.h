#pragma once

#include <absl/status/status.h>
#include <absl/status/statusor.h>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include <chrono>
#include <string>
#include <vector>

namespace lockstep {

/// How the ranks of a group that is being made hear of each other, step by step, through its store.
class Meeting {
 public:
  using Clock = std::chrono::steady_clock;

  /// `who` begins the errors. `names`: what the ranks are called in them; empty: by their number.
  Meeting(c10d::Store& store, std::string who, int rank, int world_size, Clock::time_point deadline,
          std::vector<int> names = {});

  /// Everyone says something under `step`, and hears what the others say. Unavailable when ranks don't come by the
  /// deadline.
  absl::StatusOr<std::vector<std::string>> Exchange(const std::string& step, const std::string& mine);

  /// The same for a problem, empty for none: FailedPrecondition of the lowest rank that has one, on all ranks.
  absl::Status Agree(const std::string& step, const std::string& problem);

 private:
  int Name(int rank) const { return names_.empty() ? rank : names_[rank]; }

  c10d::Store& store_;
  const std::string who_;
  const int rank_, world_size_;
  const Clock::time_point deadline_;
  const std::vector<int> names_;
};

}  // namespace lockstep
