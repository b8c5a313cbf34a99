#include "lockstep/launch/internal/launch_here.h"

#include <chrono>
#include <cstdio>

#include "lockstep/launch/internal/launch_stage.h"

namespace lockstep {

int LaunchHere(const LaunchPlan& plan) {
  LaunchStage stage(plan);
  if (!stage.ready().ok()) {
    std::fprintf(stderr, "error: %s\n", std::string(stage.ready().message()).c_str());
    return 2;
  }
  Placement placement;
  placement.world_size = placement.role_world_size = plan.spawn.num_ranks;
  placement.master_addr = plan.spawn.master_addr;
  placement.master_port = plan.spawn.master_port;
  while (true) {
    const RankOutcome outcome = RunRankSet(plan, placement, stage.setting());
    if (!outcome.may_restart || placement.restarts >= plan.spawn.max_restarts) {
      if (outcome.failure) stage.Report(*outcome.failure);
      return outcome.code;
    }
    ++placement.restarts;
    std::fprintf(stderr, "lockstep: starting all ranks again (restart %d of %d)\n", placement.restarts,
                 plan.spawn.max_restarts);
  }
}

}  // namespace lockstep
