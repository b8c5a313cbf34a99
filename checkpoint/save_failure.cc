#include "lockstep/checkpoint/save_failure.h"

#include "lockstep/base/logging.h"

namespace lockstep {

absl::Status ErrorOrWarning(const absl::Status& saved, bool failure_is_error, const ProcessGroupPtr& group) {
  if (saved.ok() || failure_is_error) return saved;
  if (GetRank(group) == 0) LOG(WARNING) << "a checkpoint was not saved: " << saved.message();
  return absl::OkStatus();
}

}  // namespace lockstep
