#pragma once

#include <absl/status/statusor.h>

#include <map>
#include <string>

namespace lockstep {

/// Standard output, standard error, both or none, for each local rank.
class StreamChoice {
 public:
  static constexpr int kOut = 1, kErr = 2;

  /// "0" to "3" for all ranks, or "0:3,1:1" for some. InvalidArgument names `flag`.
  static absl::StatusOr<StreamChoice> Parse(const std::string& flag, const std::string& text);

  /// kOut, kErr, both added up, or 0.
  int Of(int local_rank) const;
  bool Any() const;

  /// The highest local rank that is named; -1: none is.
  int Highest() const { return some_.empty() ? -1 : some_.rbegin()->first; }

 private:
  int all_ = 0;
  std::map<int, int> some_;
};

}  // namespace lockstep
