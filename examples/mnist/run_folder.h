#pragma once

#include <absl/status/statusor.h>

#include <string>

#include "lockstep/checkpoint/value.h"
#include "lockstep/comm/collectives.h"
#include "lockstep/examples/mnist/config.h"

namespace mnist {

/// Where a run's files are.
struct RunFolder {
  std::string folder;
  std::string best_path;     ///< The best weights, cnn.pt.
  std::string checkpoints;   ///< The folder of checkpoints to go on from, checkpoints in the folder.
  std::string resume_path;   ///< The checkpoint to go on from; empty for a new run.
  std::string resumed_run;   ///< The folder of that run; empty where the checkpoint stands alone.
  std::string resumed_best;  ///< The best weights of that run.
};

/// Decides the paths, with the folder's default `runs/<time>` below where the user stood; makes nothing. When the
/// launcher starts the ranks again, the run that it started before goes on from its latest checkpoint. Errors: a folder
/// that has a run in it and is not resumed, nothing to resume.
absl::StatusOr<RunFolder> PlanRunFolder(const Config& config, const lockstep::DistributedEnvironment& environment);

/// Rank 0 plans the folder, makes it and checks that checkpoints can be written; all ranks get the same result.
/// Collective.
absl::StatusOr<RunFolder> OpenRunFolder(const Config& config, const lockstep::DistributedEnvironment& environment,
                                        const lockstep::ProcessGroupPtr& group);

/// The configuration of the run that a checkpoint is of, as JSON: from the checkpoint, or from the run's folder; empty
/// where it is in neither.
std::string ResumedConfig(const lockstep::Value& checkpoint, const RunFolder& run);

}  // namespace mnist
