#pragma once

#include <absl/status/statusor.h>

#include <chrono>
#include <optional>
#include <string>

#include "lockstep/launch/internal/arguments.h"
#include "lockstep/launch/internal/launch_plan.h"

namespace lockstep {

/// How the launchers of several hosts find each other.
struct MeetingOptions {
  int min_nodes = 1, max_nodes = 1;
  bool elastic = false;  ///< c10d: numbers are given out there, and hosts may come and go. Else `node_rank` says it.
  int node_rank = 0;
  std::string host;
  int port = 0;
  std::string id;               ///< Only launchers with the same one meet.
  std::string local_addr;       ///< Empty: found.
  std::optional<bool> is_host;  ///< Nothing: found.
  int expendable_from = -1;     ///< A host may go that has ranks from this one on alone; -1: none may.
  std::chrono::milliseconds reach_timeout, join_timeout, last_call_timeout;
  std::chrono::milliseconds beat_interval, silence_limit;  ///< A host that says nothing for so long is gone.
};

struct LauncherOptions {
  LaunchPlan plan;    ///< Without its master, where hosts meet.
  bool alone = true;  ///< This host is the only one.
  std::string master_addr;
  int master_port = 0;     ///< 0: a free one.
  MeetingOptions meeting;  ///< Where it is not alone.
};

/// Understands the arguments. InvalidArgument names what is wrong in one line.
absl::StatusOr<LauncherOptions> ReadLauncherOptions(const Arguments& arguments);

}  // namespace lockstep
