#include "lockstep/examples/mnist/run_folder.h"

#include <absl/status/status.h>
#include <absl/strings/match.h>
#include <absl/strings/str_cat.h>
#include <absl/time/clock.h>
#include <absl/time/time.h>

#include <fcntl.h>
#include <sys/file.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <system_error>

#include "lockstep/base/status_macros.h"
#include "lockstep/checkpoint/atomic_file.h"
#include "lockstep/comm/agree.h"
#include "lockstep/comm/texts.h"

namespace mnist {
namespace {

namespace fs = std::filesystem;

constexpr char kMetrics[] = "metrics.jsonl";
constexpr char kLast[] = "last.pt";

/// The newest folder below `runs` with a checkpoint in it.
absl::StatusOr<std::string> LatestRun(const std::string& runs) {
  std::error_code error;
  std::string latest;
  fs::file_time_type newest;
  for (const auto& entry : fs::directory_iterator(runs, error)) {
    const fs::path last = entry.path() / kLast;
    std::error_code ignored;
    const auto time = fs::last_write_time(last, ignored);
    if (!ignored && (latest.empty() || time > newest)) {
      latest = entry.path().string();
      newest = time;
    }
  }
  if (latest.empty()) return absl::NotFoundError(absl::StrCat("--resume=latest: no run with a ", kLast, " in ", runs));
  return latest;
}

}  // namespace

absl::StatusOr<RunFolder> PlanRunFolder(const Config& config) {
  RunFolder run;
  run.folder = config.run_dir;
  const std::string runs = UserPath("runs");
  std::error_code ignored;
  if (!config.resume.empty()) {
    std::string from = config.resume;
    if (from == "latest") {
      if (!run.folder.empty()) {
        from = run.folder;
      } else {
        LOCKSTEP_ASSIGN_OR_RETURN(from, LatestRun(runs));
      }
    }
    if (fs::is_directory(from, ignored)) {
      if (run.folder.empty()) run.folder = from;
      from = (fs::path(from) / kLast).string();
    } else if (run.folder.empty() && fs::exists(fs::path(from).parent_path() / kMetrics, ignored)) {
      run.folder = fs::path(from).parent_path().string();
    }
    if (!config.run_dir.empty() && fs::exists(fs::path(run.folder) / kMetrics, ignored) &&
        !fs::equivalent(run.folder, fs::path(from).parent_path(), ignored)) {
      return absl::AlreadyExistsError(absl::StrCat("--run_dir=", run.folder,
                                                   ": there is another run in it than the one "
                                                   "to resume; give a new folder, or leave --run_dir out"));
    }
    if (!fs::exists(from, ignored)) {
      return absl::NotFoundError(absl::StrCat("--resume=", config.resume, ": no such file or folder: ", from));
    }
    run.resume_path = from;
  }
  if (run.folder.empty()) {
    const std::string base =
        absl::StrCat(runs, "/", absl::FormatTime("%Y-%m-%d_%H-%M-%S", absl::Now(), absl::LocalTimeZone()));
    run.folder = base;
    for (int i = 2; fs::exists(run.folder, ignored); ++i) run.folder = absl::StrCat(base, "_", i);
  }
  if (run.resume_path.empty() && fs::exists(fs::path(run.folder) / kMetrics, ignored)) {
    return absl::AlreadyExistsError(absl::StrCat("--run_dir=", run.folder,
                                                 ": there is a run in it; give another folder, "
                                                 "or --resume=",
                                                 run.folder, " to go on with it"));
  }
  const std::string pt = config.pt_path.empty() ? run.folder : config.pt_path;
  run.best_path = absl::EndsWith(pt, ".pt") ? pt : absl::StrCat(pt, absl::EndsWith(pt, "/") ? "" : "/", "cnn.pt");
  run.last_path = absl::StrCat(run.folder, "/", kLast);
  return run;
}

namespace {

/// One run at a time in a folder. The lock is on the folder itself, leaves no file and ends with this process.
absl::Status LockFolder(const std::string& folder) {
  std::error_code ignored;
  fs::create_directories(folder, ignored);
  const int fd = open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (fd < 0 || flock(fd, LOCK_EX | LOCK_NB) == 0)
    return absl::OkStatus();  // what is wrong with it shows when it is used
  return absl::AlreadyExistsError(absl::StrCat("run folder ", folder, ": another run is using it"));
}

/// A run goes on with the data and the seed that it began with, or its test samples would come from the training part.
absl::Status CheckSameData(const std::string& resume_path, const std::string& config_json) {
  std::ifstream file(fs::path(resume_path).replace_filename("config.json"));
  const auto before = nlohmann::json::parse(file, nullptr, /*allow_exceptions=*/false);
  if (!before.is_object()) return absl::OkStatus();  // a checkpoint alone, without its run
  const auto now = nlohmann::json::parse(config_json);
  for (const char* key : {"data", "seed", "pixel_scale"}) {
    if (before.contains(key) && before[key] != now[key]) {
      return absl::InvalidArgumentError(absl::StrCat("--resume=", resume_path, ": the run has ", key, " ",
                                                     before[key].dump(), ", now it is ", now[key].dump(),
                                                     "; it must stay the same"));
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<RunFolder> OpenRunFolder(const Config& config, const std::string& config_json,
                                        const lockstep::ProcessGroupPtr& group) {
  RunFolder run;
  absl::Status status;
  if (lockstep::GetRank(group) == 0) {
    auto planned = PlanRunFolder(config);
    status = planned.status();
    if (status.ok()) {
      run = *std::move(planned);
      status = LockFolder(run.folder);
    }
    if (status.ok() && !run.resume_path.empty()) status = CheckSameData(run.resume_path, config_json);
    // Whether they can be written to: better known now than after the first epoch.
    if (status.ok()) status = lockstep::AtomicFile(run.last_path).Open();
    if (status.ok()) status = lockstep::AtomicFile(run.best_path).Open();
  }
  LOCKSTEP_RETURN_IF_ERROR(lockstep::AgreeOnStatus(status, group));
  for (std::string* path : {&run.folder, &run.best_path, &run.last_path, &run.resume_path}) {
    *path = lockstep::AllGatherString(*path, group)[0];
  }
  return run;
}

}  // namespace mnist
