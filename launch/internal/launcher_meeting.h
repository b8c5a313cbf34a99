#pragma once

#include <absl/status/statusor.h>

#include <memory>
#include <string>
#include <thread>

#include "lockstep/launch/internal/launcher_options.h"

namespace lockstep {

/// Where the launchers of all hosts meet. It runs in a thread of one of them, and all that concerns more than one host
/// is decided here: who has which number, when a start begins and ends, whether there is another one. Each launcher
/// keeps one connection to it, so that a host which goes away is noticed: its connection ends or falls silent.
///
/// A launcher says: join, failed (a rank, the first one there), ended (all ranks there), beat. The meeting says: round
/// (start ranks so), stop (end them), finish (all is over), refused, note (to be shown), beat, and first keep_alive
/// (how often both beat and which silence is the end, so that nobody is given up who keeps to another launcher's
/// options).
class LauncherMeeting {
 public:
  /// Unavailable when the port can't be had, `in_use` where another one has it, or no file descriptor is left.
  static absl::StatusOr<std::unique_ptr<LauncherMeeting>> Open(const MeetingOptions& options,
                                                               const std::string& launch_id, int max_restarts,
                                                               bool* in_use);

  /// Waits until every launcher knows that all is over; if it isn't, because this host's launcher was interrupted, the
  /// others are told so.
  ~LauncherMeeting();
  LauncherMeeting(const LauncherMeeting&) = delete;
  LauncherMeeting& operator=(const LauncherMeeting&) = delete;

 private:
  explicit LauncherMeeting(int wake) : wake_(wake) {}

  const int wake_;  // an eventfd
  std::thread thread_;
};

}  // namespace lockstep
