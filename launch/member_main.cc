#include "lockstep/launch/member_main.h"

#include <absl/status/statusor.h>
#include <unistd.h>

#include <cstdio>
#include <string>

#include "lockstep/base/error_text.h"
#include "lockstep/base/exit_code.h"
#include "lockstep/base/status_macros.h"
#include "lockstep/comm/environment.h"
#include "lockstep/comm/rendezvous.h"
#include "lockstep/launch/internal/begin_rank.h"

namespace lockstep {
namespace {

absl::StatusOr<ProcessGroupPtr> Meet(const ProcessGroupOptions& options) {
  if (options.init_method == "env://" && options.world_size < 0) {
    LOCKSTEP_ASSIGN_OR_RETURN(const DistributedEnvironment environment, ReadEnvironment());
    if (environment.world_size == 1) return ProcessGroupPtr();
  }
  LOCKSTEP_ASSIGN_OR_RETURN(const Rendezvous place,
                            OpenRendezvous(options.init_method, options.rank, options.world_size, options.timeout));
  if (place.world_size == 1) return ProcessGroupPtr();
  return c10::make_intrusive<c10d::ProcessGroup>(place.store, place.rank, place.world_size);
}

}  // namespace

int MemberMain(const ProcessGroupOptions& options, const std::function<absl::Status(const ProcessGroupPtr&)>& body) {
  BeginRank();
  absl::StatusOr<ProcessGroupPtr> group = absl::UnknownError("");
  absl::Status status;
  try {
    group = Meet(options);
    status = group.ok() ? body(*group) : group.status();
  } catch (const std::exception& e) {
    status = absl::UnknownError(FirstLine(e.what()));
  }
  std::string who;
  if (group.ok() && *group) who = "rank " + std::to_string(GetRank(*group)) + ": ";
  if (status.ok()) {
    if (std::fflush(stdout) == 0 && std::ferror(stdout) == 0) return 0;
    status = absl::UnavailableError("standard output could not be written");
  }
  const auto code = ExitCodeOf(status);
  std::fprintf(stderr, "%s%s%s\n", who.c_str(), code ? "" : "error: ", std::string(status.message()).c_str());
  std::fflush(stdout);
  // Threads may wait for a rank that is gone.
  _exit(code.value_or(1));
}

}  // namespace lockstep
