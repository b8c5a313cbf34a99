#include "lockstep/parallel/rank_grid.h"

#include <absl/status/status.h>
#include <absl/strings/str_cat.h>

#include <vector>

#include "lockstep/base/status_macros.h"

namespace lockstep {

absl::StatusOr<RankGrid> MakeRankGrid(const ProcessGroupPtr& group, int num_stages,
                                      const ProcessGroupOptions& options) {
  const int world = GetWorldSize(group), rank = GetRank(group);
  if (num_stages < 1 || world % num_stages != 0) {
    return absl::InvalidArgumentError(absl::StrCat("a pipeline of ", num_stages, " stages: the number of ranks, ",
                                                   world, ", must be a multiple of it"));
  }
  RankGrid grid;
  grid.stage = rank % num_stages;
  grid.replica = rank / num_stages;
  std::vector<int> stages, replicas;
  for (int s = 0; s < num_stages; ++s) stages.push_back(grid.replica * num_stages + s);
  for (int r = 0; r < world / num_stages; ++r) replicas.push_back(r * num_stages + grid.stage);
  LOCKSTEP_ASSIGN_OR_RETURN(grid.pipeline, NewSubGroup(group, stages, options));
  LOCKSTEP_ASSIGN_OR_RETURN(grid.data, NewSubGroup(group, replicas, options));
  return grid;
}

}  // namespace lockstep
