#pragma once

#include <absl/status/statusor.h>

#include <string>

#include "lockstep/comm/collectives.h"
#include "lockstep/examples/cifar10/config.h"

namespace cifar10 {

/// Makes the run's folder, `<save_dir>/<program>`, and returns the checkpoint to go on from: of --resume, or, where the
/// launcher has started the ranks again, the run's own latest; empty: the run is new. Errors, on all ranks: a run in
/// the folder that isn't to be resumed, nothing to resume, a folder that can't be written to. Collective.
absl::StatusOr<std::string> OpenRunFolder(const Config& config, const lockstep::DistributedEnvironment& environment,
                                          const lockstep::ProcessGroupPtr& group);

}  // namespace cifar10
