#include "lockstep/data/once_per_host.h"

#include <exception>

#include "lockstep/base/error_text.h"
#include "lockstep/comm/agree.h"

namespace lockstep {
namespace {

absl::Status Call(const std::function<absl::Status()>& work) {
  try {
    return work();
  } catch (const std::exception& e) {
    return absl::InternalError(FirstLine(e.what()));
  }
}

}  // namespace

absl::Status OncePerHost(const std::function<absl::Status()>& work, const HostRanks& ranks) {
  const bool mine = ranks.shared_folder ? GetRank(ranks.group) == 0 : ranks.local_rank == 0;
  return AgreeOnStatus(mine ? Call(work) : absl::OkStatus(), ranks.group);
}

absl::Status UnpackOnce(const std::string& archive, const std::string& folder, const HostRanks& ranks,
                        const UnpackLimits& limits) {
  return OncePerHost([&] { return Unpack(archive, folder, limits); }, ranks);
}

}  // namespace lockstep
