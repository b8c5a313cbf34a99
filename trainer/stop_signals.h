#pragma once

#include <csignal>
#include <vector>

namespace lockstep {

/// Takes signals as a wish to stop, which a scheduler or a person may have: the trainer then saves and ends. The next
/// one, of any of them, has its usual effect and ends the process at once; those within a tenth of a second are taken
/// for one, since a launcher and a terminal may both send theirs.
class StopSignals {
 public:
  /// One object at a time; throws c10::Error otherwise.
  explicit StopSignals(std::vector<int> signals = {SIGTERM, SIGUSR1, SIGINT});
  /// Puts back what was there before.
  ~StopSignals();
  StopSignals(const StopSignals&) = delete;
  StopSignals& operator=(const StopSignals&) = delete;

  /// The first of the signals that this process got; 0: none.
  int received() const;

 private:
  const std::vector<int> signals_;
  std::vector<struct sigaction> before_;
};

}  // namespace lockstep
