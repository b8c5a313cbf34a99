#pragma once

#include <absl/status/statusor.h>

#include <map>
#include <string>

namespace lockstep {

/// Decides after each validation whether training goes on. The metrics are those over all ranks.
class StopCriterion {
 public:
  struct Verdict {
    bool improved = false;  ///< The best so far: worth keeping.
    bool stop = false;      ///< Training should end.
  };

  virtual ~StopCriterion() = default;
  virtual absl::StatusOr<Verdict> Check(const std::map<std::string, double>& metrics) = 0;
  /// Validations since the last improvement, for people to read.
  virtual int counter() const = 0;
  /// Why it stopped, for people; empty while it has not. A resumed training doesn't begin where there is a reason.
  virtual std::string reason() const { return ""; }
  /// Everything that must be kept for training to resume as if it had not stopped.
  virtual std::map<std::string, double> state() const = 0;
  virtual absl::Status set_state(const std::map<std::string, double>& state) = 0;
};

}  // namespace lockstep
