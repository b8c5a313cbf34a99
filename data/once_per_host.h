#pragma once

#include <absl/status/status.h>

#include <functional>
#include <string>

#include "lockstep/comm/collectives.h"
#include "lockstep/data/archive.h"

namespace lockstep {

/// Which rank prepares data for which. A null group is a world of one.
struct HostRanks {
  ProcessGroupPtr group;
  int local_rank = 0;          ///< Of this rank on its host (`ReadEnvironment()->local_rank`).
  bool shared_folder = false;  ///< All hosts see the same folder, so that rank 0 alone prepares it.
};

/// The rank with local rank 0 of each host calls `work` while the others wait. An error there (or exception, as an
/// Internal error) is returned on all ranks. Collective.
absl::Status OncePerHost(const std::function<absl::Status()>& work, const HostRanks& ranks);

/// `Unpack`, once per host. Collective.
absl::Status UnpackOnce(const std::string& archive, const std::string& folder, const HostRanks& ranks,
                        const UnpackLimits& limits = {});

}  // namespace lockstep
