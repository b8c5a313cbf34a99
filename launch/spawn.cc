#include "lockstep/launch/spawn.h"

#include <unistd.h>

#include "lockstep/launch/internal/launch_here.h"
#include "lockstep/launch/internal/standard_streams.h"

namespace lockstep {

std::string ThisProgram() {
  char path[4096];
  const ssize_t n = readlink("/proc/self/exe", path, sizeof(path));
  return n > 0 ? std::string(path, static_cast<size_t>(n)) : "";
}

std::string NewLaunchId() {
  const auto now = std::chrono::system_clock::now().time_since_epoch().count();
  return "lockstep-" + std::to_string(getpid()) + "-" + std::to_string(now);
}

int SpawnRanks(const SpawnOptions& options) {
  OpenStandardStreams();
  LaunchPlan plan;
  plan.spawn = options;
  if (plan.spawn.launch_id.empty()) plan.spawn.launch_id = NewLaunchId();
  return LaunchHere(plan);
}

}  // namespace lockstep
