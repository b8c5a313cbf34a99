#include "lockstep/launch/internal/launch_here.h"

#include <absl/status/status.h>
#include <absl/status/statusor.h>
#include <absl/strings/str_cat.h>

#include "lockstep/launch/internal/launch_stage.h"
#include "lockstep/launch/port.h"

namespace lockstep {

int LaunchHere(const LaunchPlan& plan) {
  LaunchStage stage(plan);
  if (!stage.ready().ok()) {
    stage.Say(absl::StrCat("error: ", stage.ready().message(), "\n"));
    return 2;
  }
  Placement placement;
  placement.world_size = placement.role_world_size = plan.spawn.num_ranks;
  placement.master_addr = plan.spawn.master_addr;
  placement.master_port = plan.spawn.master_port;
  absl::StatusOr<ReservedPort> port = absl::NotFoundError("none but the plan's");
  while (true) {
    const RankOutcome outcome = RunRankSet(plan, placement, stage.setting());
    if (!outcome.may_restart || placement.restarts >= plan.spawn.max_restarts) {
      if (outcome.failure) stage.Report(*outcome.failure);
      return outcome.code;
    }
    ++placement.restarts;
    // What a rank has left behind may still listen at the last one.
    if (plan.any_port) port = ReservedPort::Reserve(0);
    if (port.ok()) placement.master_port = port->port();
    stage.Say(absl::StrCat("lockstep: starting all ranks again (restart ", placement.restarts, " of ",
                           plan.spawn.max_restarts, ")\n"));
  }
}

}  // namespace lockstep
