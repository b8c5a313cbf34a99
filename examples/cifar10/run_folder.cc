#include "lockstep/examples/cifar10/run_folder.h"

#include <absl/status/status.h>
#include <absl/strings/str_cat.h>

#include <filesystem>
#include <fstream>
#include <iterator>

#include "lockstep/base/atomic_file.h"
#include "lockstep/base/folder_lock.h"
#include "lockstep/base/status_macros.h"
#include "lockstep/checkpoint/checkpointer.h"
#include "lockstep/comm/agree.h"
#include "lockstep/comm/texts.h"

namespace cifar10 {
namespace {

namespace fs = std::filesystem;

absl::StatusOr<std::string> Open(const Config& config, const lockstep::DistributedEnvironment& environment) {
  const fs::path folder = config.run_folder(), checkpoints = folder / "checkpoints", launch = folder / "launch_id";
  std::error_code error;
  LOCKSTEP_RETURN_IF_ERROR(lockstep::LockFolder(folder.string()));
  const bool has_run =
      (fs::exists(folder / "metrics.jsonl", error) && fs::file_size(folder / "metrics.jsonl", error) > 0) ||
      fs::exists(checkpoints / "latest", error);
  std::ifstream file(launch);
  const std::string launched_by{std::istreambuf_iterator<char>(file), {}};
  const bool again = environment.restarts > 0 && launched_by == environment.launch_id;
  std::string from;
  if (again) {
    const auto latest = lockstep::Checkpointer::Latest(checkpoints.string());
    if (latest.ok()) from = *latest;
  }
  if (from.empty() && !config.resume.empty()) {
    if (config.resume == "latest" || config.resume == "best") {
      const auto found = config.resume == "best" ? lockstep::Checkpointer::Best(checkpoints.string())
                                                 : lockstep::Checkpointer::Latest(checkpoints.string());
      if (!found.ok()) {
        return absl::Status(found.status().code(),
                            absl::StrCat("--resume=", config.resume, ": ", std::string(found.status().message())));
      }
      from = *found;
    } else {
      from = config.resume;
      if (!fs::is_regular_file(from, error)) {
        return absl::NotFoundError(absl::StrCat("--resume=", from, ": no such file"));
      }
    }
  }
  if (has_run && from.empty() && !again) {
    return absl::AlreadyExistsError(absl::StrCat("there is a run in ", folder.string(),
                                                 "; go on with it (--resume=latest)",
                                                 ", or put the new one elsewhere (--set save_dir=…)"));
  }
  // Whether it can be written to: better known now than after the first epoch.
  LOCKSTEP_RETURN_IF_ERROR(lockstep::AtomicFile((checkpoints / "latest").string()).Open());
  LOCKSTEP_RETURN_IF_ERROR(lockstep::WriteFileAtomically(launch.string(), environment.launch_id));
  return from;
}

}  // namespace

absl::StatusOr<std::string> OpenRunFolder(const Config& config, const lockstep::DistributedEnvironment& environment,
                                          const lockstep::ProcessGroupPtr& group) {
  absl::StatusOr<std::string> from = std::string();
  if (lockstep::GetRank(group) == 0) from = Open(config, environment);
  LOCKSTEP_RETURN_IF_ERROR(lockstep::AgreeOnStatus(from.status(), group));
  return lockstep::AllGatherString(*from, group)[0];
}

}  // namespace cifar10
