#include "lockstep/examples/mnist/run_folder.h"

#include <absl/status/status.h>
#include <absl/strings/match.h>
#include <absl/strings/str_cat.h>
#include <absl/time/clock.h>
#include <absl/time/time.h>

#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <nlohmann/json.hpp>
#include <system_error>

#include "lockstep/base/atomic_file.h"
#include "lockstep/base/folder_lock.h"
#include "lockstep/base/status_macros.h"
#include "lockstep/base/user_path.h"
#include "lockstep/checkpoint/checkpointer.h"
#include "lockstep/checkpoint/pth.h"
#include "lockstep/comm/agree.h"
#include "lockstep/comm/texts.h"

namespace mnist {
namespace {

namespace fs = std::filesystem;

constexpr char kMetrics[] = "metrics.jsonl";
constexpr char kCheckpoints[] = "checkpoints";
constexpr char kLast[] = "last.pt";  // of earlier versions

bool Exists(const fs::path& path) {
  std::error_code ignored;
  return fs::exists(path, ignored);
}

bool IsRun(const fs::path& folder) { return Exists(folder / kMetrics); }

/// The wanted folder below `runs` whose `file` is the newest, or empty.
std::string NewestRun(const std::string& runs, const char* file,
                      const std::function<bool(const fs::path& folder)>& wanted) {
  std::error_code error;
  std::string newest;
  fs::file_time_type newest_time;
  for (const auto& entry : fs::directory_iterator(runs, error)) {
    std::error_code missing;
    const auto time = fs::last_write_time(entry.path() / file, missing);
    if (missing || !wanted(entry.path()) || (!newest.empty() && time <= newest_time)) continue;
    newest = entry.path().string();
    newest_time = time;
  }
  return newest;
}

/// The newest run with a checkpoint in it.
absl::StatusOr<std::string> LatestRun(const std::string& flag, const std::string& runs) {
  const auto any = [](const fs::path&) { return true; };
  std::string latest = NewestRun(runs, "checkpoints/latest", any);
  if (latest.empty()) latest = NewestRun(runs, kLast, any);
  if (latest.empty())
    return absl::NotFoundError(absl::StrCat("--resume=", flag, ": no run with a checkpoint in ", runs));
  return latest;
}

/// Whether a configuration was written by a run that this launch began.
bool IsOfLaunch(const std::string& config, const std::string& launch_id) {
  const auto json = nlohmann::json::parse(config, nullptr, /*allow_exceptions=*/false);
  return !launch_id.empty() && json.is_object() && json.value("launch_id", "") == launch_id;
}

std::string ReadText(const fs::path& path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), {}};
}

/// The folder of the run that this launch began before it started the ranks again, or empty.
std::string RunOfLaunch(const std::string& launch_id, const std::string& run_dir, const std::string& runs) {
  const auto is_ours = [&](const fs::path& folder) { return IsOfLaunch(ReadText(folder / "config.json"), launch_id); };
  if (run_dir.empty()) return NewestRun(runs, "config.json", is_ours);
  return is_ours(run_dir) ? run_dir : "";
}

/// A checkpoint in a run's folder, or in a folder of checkpoints.
absl::StatusOr<std::string> CheckpointIn(const fs::path& folder, bool best) {
  fs::path checkpoints = folder / kCheckpoints;
  if (!Exists(checkpoints)) {
    if (!best && Exists(folder / kLast)) return (folder / kLast).string();
    checkpoints = folder;
  }
  return best ? lockstep::Checkpointer::Best(checkpoints.string())
              : lockstep::Checkpointer::Latest(checkpoints.string());
}

/// Of --pt_path: a folder, a name ending in .pt, or nothing.
std::string BestPath(const std::string& pt_path, const std::string& run_folder) {
  const std::string pt = pt_path.empty() ? run_folder : pt_path;
  return absl::EndsWith(pt, ".pt") ? pt : absl::StrCat(pt, absl::EndsWith(pt, "/") ? "" : "/", "cnn.pt");
}

/// The configuration that a checkpoint was saved with, or empty.
std::string ConfigIn(const lockstep::Value& checkpoint) {
  const lockstep::Value* const run = checkpoint.find("run");
  const lockstep::Value* const config = run == nullptr ? nullptr : run->find("config");
  return config != nullptr && config->string() != nullptr ? *config->string() : "";
}

std::string ConfigIn(const std::string& path) {
  lockstep::LoadPthOptions options;
  options.verify = false;  // it was just now
  const auto checkpoint = lockstep::LoadPth(path, options);
  return checkpoint.ok() ? ConfigIn(*checkpoint) : "";
}

/// The folder of the run that a checkpoint belongs to, or empty.
std::string RunOf(const std::string& checkpoint) {
  const fs::path folder = fs::path(checkpoint).parent_path();
  if (IsRun(folder)) return folder.string();
  if (folder.filename() == kCheckpoints && IsRun(folder.parent_path())) return folder.parent_path().string();
  return "";
}

}  // namespace

absl::StatusOr<RunFolder> PlanRunFolder(const Config& config, const lockstep::DistributedEnvironment& environment) {
  RunFolder run;
  run.folder = config.run_dir;
  const std::string runs = lockstep::UserPath("runs");
  std::error_code ignored;
  // Started again, a run goes on with what it has saved itself, or begins as it did at first.
  const std::string own = environment.restarts == 0 ? "" : RunOfLaunch(environment.launch_id, config.run_dir, runs);
  if (!own.empty()) {
    run.folder = own;
    const auto latest = CheckpointIn(own, /*best=*/false);
    if (latest.ok() && IsOfLaunch(ConfigIn(*latest), environment.launch_id)) run.resume_path = *latest;
  }
  if (run.resume_path.empty() && !config.resume.empty()) {
    const bool best = config.resume == "best";
    std::string from = config.resume;
    if (best || from == "latest") {
      from = config.run_dir;
      if (from.empty()) {
        LOCKSTEP_ASSIGN_OR_RETURN(from, LatestRun(config.resume, runs));
      }
    }
    if (!Exists(from)) {
      return absl::NotFoundError(absl::StrCat("--resume=", config.resume, ": no such file or folder: ", from));
    }
    if (fs::is_directory(from, ignored)) {
      const auto found = CheckpointIn(from, best);
      if (!found.ok()) {
        return absl::Status(found.status().code(),
                            absl::StrCat("--resume=", config.resume, ": ", std::string(found.status().message())));
      }
      from = *found;
    }
    run.resume_path = from;
  }
  if (!run.resume_path.empty()) {
    run.resumed_run = RunOf(run.resume_path);
    if (run.folder.empty()) run.folder = run.resumed_run;
    if (own.empty() && IsRun(run.folder) && !fs::equivalent(run.folder, run.resumed_run, ignored)) {
      return absl::AlreadyExistsError(absl::StrCat("--run_dir=", run.folder,
                                                   ": there is another run in it than the one "
                                                   "to resume; give a new folder, or leave --run_dir out"));
    }
  }
  if (run.folder.empty()) {
    const std::string base =
        absl::StrCat(runs, "/", absl::FormatTime("%Y-%m-%d_%H-%M-%S", absl::Now(), absl::LocalTimeZone()));
    run.folder = base;
    for (int i = 2; fs::exists(run.folder, ignored); ++i) run.folder = absl::StrCat(base, "_", i);
  }
  if (run.resume_path.empty() && own.empty() && IsRun(run.folder)) {
    return absl::AlreadyExistsError(absl::StrCat("--run_dir=", run.folder,
                                                 ": there is a run in it; give another folder, "
                                                 "or --resume=",
                                                 run.folder, " to go on with it"));
  }
  // The best weights stay where the run has put them.
  std::string pt = config.pt_path;
  if (!run.resumed_run.empty()) {
    const auto before =
        nlohmann::json::parse(ReadText(fs::path(run.resumed_run) / "config.json"), nullptr, /*allow_exceptions=*/false);
    const std::string old = before.is_object() && before.contains("pt_path") && before["pt_path"].is_string()
                                ? before["pt_path"].get<std::string>()
                                : "";
    run.resumed_best = BestPath(old, run.resumed_run);
    if (pt.empty() && run.folder == run.resumed_run) pt = old;
  }
  run.best_path = BestPath(pt, run.folder);
  run.checkpoints = absl::StrCat(run.folder, "/", kCheckpoints);
  return run;
}

std::string ResumedConfig(const lockstep::Value& checkpoint, const RunFolder& run) {
  const std::string saved = ConfigIn(checkpoint);
  return saved.empty() ? ReadText(fs::path(run.resumed_run) / "config.json") : saved;
}

absl::StatusOr<RunFolder> OpenRunFolder(const Config& config, const lockstep::DistributedEnvironment& environment,
                                        const lockstep::ProcessGroupPtr& group) {
  RunFolder run;
  absl::Status status;
  if (lockstep::GetRank(group) == 0) {
    auto planned = PlanRunFolder(config, environment);
    status = planned.status();
    if (status.ok()) {
      run = *std::move(planned);
      status = lockstep::LockFolder(run.folder);
    }
    // Whether they can be written to: better known now than after the first epoch.
    if (status.ok()) status = lockstep::AtomicFile(run.checkpoints + "/latest").Open();
    if (status.ok()) status = lockstep::AtomicFile(run.best_path).Open();
  }
  LOCKSTEP_RETURN_IF_ERROR(lockstep::AgreeOnStatus(status, group));
  for (std::string* path :
       {&run.folder, &run.best_path, &run.checkpoints, &run.resume_path, &run.resumed_run, &run.resumed_best}) {
    *path = lockstep::AllGatherString(*path, group)[0];
  }
  return run;
}

}  // namespace mnist
