// Starts one process per rank on this host, as torchrun does, and meets the launchers of other hosts:
//   lockstep_run --nproc_per_node=2 [options] PROGRAM [ARGUMENTS]

#include <absl/status/status.h>
#include <unistd.h>

#include <cstdio>
#include <string>

#include "lockstep/launch/internal/arguments.h"
#include "lockstep/launch/internal/launch_here.h"
#include "lockstep/launch/internal/launch_with_others.h"
#include "lockstep/launch/internal/launcher_options.h"
#include "lockstep/launch/internal/standard_streams.h"
#include "lockstep/launch/port.h"
#include "lockstep/launch/spawn.h"

namespace {

int Fail(const absl::Status& status) {
  std::fprintf(stderr, "error: %s\n", std::string(status.message()).c_str());
  return 2;
}

}  // namespace

int main(int argc, char** argv) {
  lockstep::OpenStandardStreams();
  const auto arguments = lockstep::Arguments::Parse(argc, argv);
  if (!arguments.ok()) return Fail(arguments.status());
  if (arguments->help()) {
    std::fputs(lockstep::LauncherHelp().c_str(), stdout);
    return 0;
  }
  auto options = lockstep::ReadLauncherOptions(*arguments);
  if (!options.ok()) return Fail(options.status());
  lockstep::LaunchPlan& plan = options->plan;
  plan.is_init = getpid() == 1;
  if (plan.spawn.launch_id.empty()) plan.spawn.launch_id = lockstep::NewLaunchId();
  if (!options->alone) return lockstep::LaunchWithOthers(plan, options->meeting);
  const auto port = lockstep::ReservedPort::Reserve(options->master_port);
  if (!port.ok()) return Fail(port.status());
  plan.spawn.master_addr = options->master_addr;
  plan.spawn.master_port = port->port();
  plan.any_port = options->master_port == 0;
  return lockstep::LaunchHere(plan);
}
