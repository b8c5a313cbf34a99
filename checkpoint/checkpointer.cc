#include "lockstep/checkpoint/checkpointer.h"

#include <absl/status/status.h>
#include <absl/strings/match.h>
#include <absl/strings/str_cat.h>
#include <absl/strings/str_format.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <set>
#include <system_error>
#include <utility>

#include "lockstep/base/atomic_file.h"
#include "lockstep/base/error_text.h"
#include "lockstep/base/prefixed.h"
#include "lockstep/base/status_macros.h"
#include "lockstep/checkpoint/internal/checkpoint_list.h"
#include "lockstep/checkpoint/pth.h"
#include "lockstep/checkpoint/save_failure.h"
#include "lockstep/comm/agree.h"

#include "lockstep/base/logging.h"

namespace lockstep {
namespace {

namespace fs = std::filesystem;
using internal::CheckpointList;
using internal::ListedCheckpoint;

constexpr char kEnding[] = ".pth";

/// "name.tmp.123", as AtomicFile calls what it has not finished.
bool IsTemporary(const std::string& name) {
  const size_t at = name.rfind(".tmp.");
  return at != std::string::npos && at + 5 < name.size() &&
         name.find_first_not_of("0123456789", at + 5) == std::string::npos;
}

void RemoveTemporaries(const std::string& folder) {
  std::error_code ignored;
  for (const auto& entry : fs::directory_iterator(folder, ignored)) {
    if (IsTemporary(entry.path().filename().string())) fs::remove(entry.path(), ignored);
  }
}

/// The newest .pth file that can be read, for a folder without a list.
absl::StatusOr<std::string> NewestReadable(const std::string& folder) {
  std::vector<std::pair<fs::file_time_type, std::string>> files;
  std::error_code ignored;
  for (const auto& entry : fs::directory_iterator(folder, ignored)) {
    if (entry.path().extension() == kEnding)
      files.emplace_back(fs::last_write_time(entry.path(), ignored), entry.path().string());
  }
  std::sort(files.rbegin(), files.rend());
  for (const auto& [time, path] : files) {
    const auto loaded = LoadPth(path);
    if (loaded.ok()) return path;
    LOG(WARNING) << loaded.status().message() << "; taking an older one";
  }
  return absl::NotFoundError(absl::StrCat("folder ", folder, ": there is no checkpoint in it"));
}

}  // namespace

Checkpointer::Checkpointer(CheckpointerOptions options, CheckpointWriter& writer, ProcessGroupPtr group)
    : options_(std::move(options)), writer_(writer), group_(std::move(group)) {
  TORCH_CHECK(!options_.folder.empty(), "Checkpointer: give a folder");
  TORCH_CHECK(options_.keep_best == 0 || !options_.monitor.empty(),
              "Checkpointer: keep_best needs a metric to monitor");
  TORCH_CHECK(!options_.name.empty() && options_.name.find('/') == std::string::npos,
              "Checkpointer: the name must not be empty and have no '/': '", options_.name, "'");
  if (GetRank(group_) == 0) RemoveTemporaries(options_.folder);
}

Checkpointer::~Checkpointer() {
  if (thread_.joinable()) thread_.join();
  if (!last_.ok()) LOG(WARNING) << "the last checkpoint was not saved: " << last_.message();
}

absl::StatusOr<std::string> Checkpointer::FileName(const CheckpointMoment& moment) const {
  std::string name;
  const std::string& pattern = options_.name;
  for (size_t at = 0; at < pattern.size(); ++at) {
    if (pattern[at] != '{') {
      name += pattern[at];
      continue;
    }
    const size_t end = pattern.find('}', at);
    if (end == std::string::npos)
      return absl::InvalidArgumentError("checkpoint name '" + pattern + "': a } is missing");
    const std::string field = pattern.substr(at + 1, end - at - 1), key = field.substr(0, field.find(':'));
    const std::string format = key.size() == field.size() ? "" : field.substr(key.size() + 1);
    const auto metric = moment.metrics.find(key);
    int digits = 4;
    if (!format.empty() &&
        !(format.size() == 3 && format[0] == '.' && format[1] >= '0' && format[1] <= '9' && format[2] == 'f')) {
      return absl::InvalidArgumentError("checkpoint name '" + pattern + "': '" + format + "' is no format such as .4f");
    }
    if (!format.empty()) digits = format[1] - '0';
    if (key == "epoch" || key == "step") {
      absl::StrAppend(&name, key == "epoch" ? moment.epoch : moment.step);
    } else if (metric != moment.metrics.end()) {
      absl::StrAppend(&name, absl::StrFormat("%.*f", digits, metric->second));
    } else if (moment.metrics.empty()) {
      name += "none";
    } else {
      return absl::InvalidArgumentError("checkpoint name '" + pattern + "': there is no metric '" + key + "'");
    }
    at = end;
  }
  return name + kEnding;
}

absl::Status Checkpointer::Save(const Value& state, const CheckpointMoment& moment) {
  LOCKSTEP_RETURN_IF_ERROR(Wait());
  const auto file = FileName(moment);
  absl::Status status = file.status();
  Value saved = state;
  if (status.ok() && options_.weights_only) {
    const Value* model = state.find("model");
    saved = Value(ValueDict());
    if (model != nullptr) saved.set("model", *model);
    if (model == nullptr) status = absl::InvalidArgumentError("weights_only: the state has no 'model'");
  }
  LOCKSTEP_RETURN_IF_ERROR(AgreeOnStatus(status, group_));
  if (!options_.background) {
    if (GetRank(group_) == 0) last_ = Write(saved, *file, moment);
    return Wait();
  }
  if (GetRank(group_) != 0) return absl::OkStatus();
  thread_ =
      std::thread([this, copy = snapshot_.Take(saved), file = *file, moment] { last_ = Write(copy, file, moment); });
  return absl::OkStatus();
}

absl::Status Checkpointer::Wait() {
  if (thread_.joinable()) thread_.join();
  return ErrorOrWarning(AgreeOnStatus(std::exchange(last_, absl::OkStatus()), group_), options_.failure_is_error,
                        group_);
}

absl::Status Checkpointer::Write(const Value& state, const std::string& file, const CheckpointMoment& moment) {
  try {
    const std::string& folder = options_.folder;
    const std::string path = folder + "/" + file;
    LOCKSTEP_RETURN_IF_ERROR(writer_.Save(state, path));
    const auto written = internal::SizeAndChecksum(path);
    if (!written.ok()) return Prefixed(path + ": it was written, and then: ", written.status());
    ListedCheckpoint now{file, moment.epoch, moment.step, written->first, written->second, {}};
    const auto metric = moment.metrics.find(options_.monitor);
    if (metric != moment.metrics.end()) now.metric = metric->second;

    CheckpointList list;
    if (auto old = internal::ReadCheckpointList(folder); old.ok()) {
      list = *std::move(old);
    } else if (!absl::IsNotFound(old.status())) {
      LOG(WARNING) << old.status().message() << "; a new one is begun, and what it listed is left alone";
    }
    auto& all = list.checkpoints;
    std::vector<std::string> dropped;
    // What a run had saved that went on from an earlier step is no part of it any more.
    const auto is_abandoned = [&](const auto& one) { return one.step > now.step && one.epoch >= now.epoch; };
    for (const auto& one : all) {
      if (is_abandoned(one) && options_.keep_last > 0) dropped.push_back(one.file);
    }
    all.erase(
        std::remove_if(all.begin(), all.end(), [&](const auto& one) { return one.file == file || is_abandoned(one); }),
        all.end());
    all.push_back(now);
    list.more_is_better = options_.more_is_better;

    std::set<std::string> kept;
    const size_t newest = options_.keep_last == 0 ? all.size() : std::min(options_.keep_last, all.size());
    for (size_t i = all.size() - newest; i < all.size(); ++i) kept.insert(all[i].file);
    CheckpointList rest = list;
    for (size_t i = 0; i < options_.keep_best; ++i) {
      const ListedCheckpoint* best = rest.Best();
      if (best == nullptr) break;
      kept.insert(best->file);
      rest.checkpoints.erase(rest.checkpoints.begin() + (best - rest.checkpoints.data()));
    }
    for (const auto& one : all) {
      if (kept.count(one.file) == 0) dropped.push_back(one.file);
    }
    all.erase(std::remove_if(all.begin(), all.end(), [&](const auto& one) { return kept.count(one.file) == 0; }),
              all.end());
    LOCKSTEP_RETURN_IF_ERROR(internal::WriteCheckpointList(list, folder));
    LOCKSTEP_RETURN_IF_ERROR(WriteFileAtomically(folder + "/latest", file + "\n"));
    std::error_code ignored;
    for (const auto& name : dropped) fs::remove(folder + "/" + name, ignored);
    return absl::OkStatus();
  } catch (const std::exception& e) {
    return absl::InternalError(absl::StrCat("checkpoint ", file, ": ", FirstLine(e.what())));
  }
}

absl::StatusOr<std::string> Checkpointer::Latest(const std::string& folder) {
  auto list = internal::ReadCheckpointList(folder);
  if (!list.ok()) {
    if (list.status().code() != absl::StatusCode::kNotFound) LOG(WARNING) << list.status().message();
    return NewestReadable(folder);
  }
  for (auto one = list->checkpoints.rbegin(); one != list->checkpoints.rend(); ++one) {
    const absl::Status whole = internal::CheckWhole(*one, folder);
    if (whole.ok()) return folder + "/" + one->file;
    LOG(WARNING) << "checkpoint " << folder << "/" << one->file << ": " << whole.message() << "; taking an older one";
  }
  // A crash may have come between a file that was written anew under its name and the list: it has checksums of its
  // own.
  for (auto one = list->checkpoints.rbegin(); one != list->checkpoints.rend(); ++one) {
    const std::string path = folder + "/" + one->file;
    if (!LoadPth(path).ok()) continue;
    LOG(WARNING) << "checkpoint " << path << ": it can be read, though it is not what the list says; there is no other";
    return path;
  }
  return absl::NotFoundError(absl::StrCat("folder ", folder, ": there is no whole checkpoint in it"));
}

absl::StatusOr<std::string> Checkpointer::Best(const std::string& folder) {
  auto list = internal::ReadCheckpointList(folder);
  while (list.ok()) {
    const ListedCheckpoint* best = list->Best();
    if (best == nullptr) break;
    const absl::Status whole = internal::CheckWhole(*best, folder);
    if (whole.ok()) return folder + "/" + best->file;
    LOG(WARNING) << "checkpoint " << folder << "/" << best->file << ": " << whole.message() << "; taking the next best";
    list->checkpoints.erase(list->checkpoints.begin() + (best - list->checkpoints.data()));
  }
  if (!list.ok() && list.status().code() != absl::StatusCode::kNotFound) return list.status();
  return absl::NotFoundError(absl::StrCat("folder ", folder, ": there is no whole checkpoint with a metric in it"));
}

}  // namespace lockstep
