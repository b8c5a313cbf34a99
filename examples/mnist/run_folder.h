#pragma once

#include <absl/status/statusor.h>

#include <string>

#include "lockstep/comm/collectives.h"
#include "lockstep/examples/mnist/config.h"

namespace mnist {

/// Where a run's files are.
struct RunFolder {
  std::string folder;
  std::string best_path;    ///< The best checkpoint, cnn.pt.
  std::string last_path;    ///< The last epoch's, last.pt in the folder.
  std::string resume_path;  ///< The checkpoint to go on from; empty for a new run.
};

/// Decides the paths, with the folder's default `runs/<time>` below where the user stood; makes nothing. Errors: a
/// folder that has a run in it and is not resumed, nothing to resume.
absl::StatusOr<RunFolder> PlanRunFolder(const Config& config);

/// Rank 0 plans the folder, makes it and checks that checkpoints can be written, and that a run to resume began with
/// the same data as `config_json` says; all ranks get the same result. Collective.
absl::StatusOr<RunFolder> OpenRunFolder(const Config& config, const std::string& config_json,
                                        const lockstep::ProcessGroupPtr& group);

}  // namespace mnist
