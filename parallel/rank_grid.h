#pragma once

#include <absl/status/statusor.h>

#include "lockstep/comm/process_group.h"

namespace lockstep {

/// A rank's place among stages × replicas: pipelines side by side, each with a replica of the whole model.
struct RankGrid {
  int stage = 0;
  int replica = 0;
  ProcessGroupPtr pipeline;  ///< The stages of this replica; a rank's number in it is its stage.
  ProcessGroupPtr data;      ///< The replicas of this stage; a rank's number in it is its replica.
};

/// Arranges the ranks of `group` in pipelines of `num_stages` neighbours: rank r is stage r mod num_stages of replica
/// r / num_stages. Neighbours are on one host where hosts have a multiple of num_stages ranks, so that activations stay
/// there. `options`: of both groups, as for NewSubGroup. InvalidArgument when num_stages doesn't divide the number of
/// ranks. Collective.
absl::StatusOr<RankGrid> MakeRankGrid(const ProcessGroupPtr& group, int num_stages,
                                      const ProcessGroupOptions& options = {});

}  // namespace lockstep
