#include "lockstep/comm/turns.h"

#include <c10/util/Exception.h>

#include <exception>
#include <string>

#include "lockstep/base/error_text.h"
#include "lockstep/comm/texts.h"

namespace lockstep {
namespace {

/// Calls `work` on the ranks whose turn it is, then tells all how it went.
void Turn(bool mine, const std::function<void()>& work, const ProcessGroupPtr& group) {
  std::exception_ptr error;
  std::string reason;
  if (mine) {
    try {
      work();
    } catch (const std::exception& e) {
      error = std::current_exception();
      reason = "rank " + std::to_string(GetRank(group)) + ": " + FirstLine(e.what());
    } catch (...) {
      error = std::current_exception();
      reason = "rank " + std::to_string(GetRank(group)) + ": an exception";
    }
  }
  const auto reasons = AllGatherString(reason, group);
  if (error) std::rethrow_exception(error);
  for (const std::string& other : reasons) TORCH_CHECK(other.empty(), other);
}

}  // namespace

void OnRankZero(const std::function<void()>& work, const ProcessGroupPtr& group) {
  Turn(GetRank(group) == 0, work, group);
}

void LocalRankFirst(const std::function<void()>& work, const ProcessGroupPtr& group, int local_rank) {
  Turn(local_rank == 0, work, group);
  Turn(local_rank != 0, work, group);
}

}  // namespace lockstep
