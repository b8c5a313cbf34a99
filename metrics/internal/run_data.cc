#include "lockstep/metrics/internal/run_data.h"

#include <absl/status/status.h>
#include <absl/strings/match.h>
#include <absl/strings/str_cat.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <limits>
#include <nlohmann/json.hpp>
#include <system_error>

#include "lockstep/base/status_macros.h"
#include "lockstep/metrics/internal/markup.h"

namespace lockstep::internal {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

// No run needs more; what a damaged file makes us hold is bounded.
constexpr size_t kLongestLine = 1 << 20, kMostCurves = 32, kMostRanks = 1 << 16, kMostRows = 1000, kLongestText = 200;
constexpr int kDeepest = 32;
constexpr double kLargestCount = 1e12;

constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

Json Parse(const std::string& text) {
  // What is nested deeper is left out: it would be written out by recursion.
  const auto shallow = [](int depth, Json::parse_event_t, Json&) { return depth < kDeepest; };
  return Json::parse(text, shallow, /*allow_exceptions=*/false);
}

/// NaN where there is no number, as for null, which stands for one that is not finite.
double Number(const Json& object, const char* key) {
  const auto found = object.find(key);
  return found != object.end() && found->is_number() ? found->get<double>() : kNaN;
}

/// A count from 0 on, or NaN.
double Count(const Json& object, const char* key) {
  const double number = Number(object, key);
  return number >= 0 && number <= kLargestCount ? number : kNaN;
}

std::string Text(const Json& value) {
  return Shortened(value.is_string()         ? value.get<std::string>()
                   : value.is_number_float() ? absl::StrCat(value.get<double>())
                                             : value.dump(-1, ' ', false, Json::error_handler_t::replace),
                   kLongestText);
}

/// The values of a flat object, and those of objects in it below their names.
void Flatten(const Json& object, const std::string& prefix, std::vector<std::pair<std::string, std::string>>& rows) {
  for (const auto& [key, value] : object.items()) {
    if (rows.size() == kMostRows) return;
    const std::string name = prefix + Shortened(key, kLongestText);
    if (value.is_object() && !value.empty()) {
      Flatten(value, name + ".", rows);
    } else {
      rows.emplace_back(name, Text(value));
    }
  }
}

/// The next line, of which no more than kLongestLine is kept. False at the end.
bool NextLine(std::streambuf& in, std::string& line) {
  line.clear();
  int c = in.sbumpc();
  if (c == EOF) return false;
  for (; c != EOF && c != '\n'; c = in.sbumpc()) {
    if (line.size() <= kLongestLine) line.push_back(static_cast<char>(c));
  }
  return true;
}

absl::Status Open(const std::string& path, std::ifstream& file) {
  std::error_code error;
  const auto kind = fs::status(path, error);
  if (kind.type() != fs::file_type::regular) {
    return absl::FailedPreconditionError(absl::StrCat("file ", path, ": not a regular file"));
  }
  errno = 0;
  file.open(path, std::ios::binary);
  if (file) return absl::OkStatus();
  return absl::UnavailableError(absl::StrCat("file ", path, ": cannot be read: ", std::strerror(errno)));
}

/// Calls `use` with the object of each line of a file. False when there is no such file. Each of `use` and `notes` may
/// do nothing.
absl::StatusOr<bool> ForEachObject(const std::string& path, const std::function<void(const Json&)>& use,
                                   std::vector<std::string>* notes) {
  std::error_code error;
  if (!fs::exists(path, error) && !error) return false;
  std::ifstream file;
  LOCKSTEP_RETURN_IF_ERROR(Open(path, file));
  size_t number = 0, bad = 0, first_bad = 0;
  std::string line;
  while (NextLine(*file.rdbuf(), line)) {
    ++number;
    if (line.find_first_not_of(" \t\r") == std::string::npos) continue;
    const Json json = line.size() > kLongestLine ? Json() : Parse(line);
    if (json.is_object()) {
      use(json);
    } else if (++bad == 1) {
      first_bad = number;
    }
  }
  if (bad > 0 && notes != nullptr) {
    notes->push_back(absl::StrCat(path, " line ", first_bad, ": no JSON object, left out",
                                  bad == 1 ? "" : absl::StrCat("; so were ", bad - 1, " more lines")));
  }
  return true;
}

/// Where steps stand in an epoch.
struct StepScale {
  double steps = 0;  ///< The highest step of any line.

  double Position(double epoch, double step, double of_line) const {
    const double all = std::max({of_line > 0 ? of_line : steps, step, 1.});
    return epoch - 1 + step / all;
  }
};

absl::StatusOr<bool> ReadSteps(const std::string& path, StepScale& scale, RunData& run) {
  const auto measure = [&](const Json& line) {
    const double step = Count(line, "step");
    if (step > scale.steps) scale.steps = step;
  };
  LOCKSTEP_ASSIGN_OR_RETURN(const bool exists, ForEachObject(path, measure, nullptr));
  if (!exists) return false;
  size_t lost = 0;
  const auto add = [&](const Json& line) {
    const double epoch = Count(line, "epoch"), step = Count(line, "step");
    if (std::isnan(epoch) || std::isnan(step)) {
      ++lost;
      return;
    }
    const double x = scale.Position(epoch, step, Count(line, "steps"));
    if (line.contains("loss")) run.step_loss.Add(x, Number(line, "loss"));
    if (line.contains("accuracy")) run.step_accuracy.Add(x, Number(line, "accuracy"));
    if (line.contains("learning_rate")) run.learning_rate.Add(x, Number(line, "learning_rate"));
  };
  LOCKSTEP_RETURN_IF_ERROR(ForEachObject(path, add, &run.notes).status());
  if (lost > 0) run.notes.push_back(absl::StrCat(path, ": ", lost, " lines without an epoch and a step, left out"));
  if (run.step_loss.gaps() > 0) {
    run.notes.push_back(absl::StrCat(path, ": the loss of ", run.step_loss.gaps(), " steps is not finite"));
  }
  return true;
}

/// A line with a step is of a validation inside its epoch; `seconds` count from the epoch's begin.
absl::StatusOr<bool> ReadEpochs(const std::string& path, const StepScale& scale, RunData& run) {
  size_t lost = 0;
  double last_epoch = 0, epoch_seconds = 0;
  const auto add = [&](const Json& line) {
    const double epoch = Count(line, "epoch");
    if (std::isnan(epoch)) {
      ++lost;
      return;
    }
    const double step = Count(line, "step");
    const double x = std::isnan(step) ? epoch : scale.Position(epoch, step, 0);
    for (const auto& [name, value] : line.items()) {
      if (!absl::StartsWith(name, "train_") && !absl::StartsWith(name, "val_") && name != "learning_rate") continue;
      auto found = run.epochs.find(name);
      if (found == run.epochs.end()) {
        if (run.epochs.size() == kMostCurves) continue;
        found = run.epochs.emplace(name, ThinnedCurve()).first;
      }
      found->second.Add(x, Number(line, name.c_str()));
    }
    const double seconds = Count(line, "seconds");
    if (epoch != last_epoch) epoch_seconds = 0;
    last_epoch = epoch;
    if (!std::isnan(seconds)) {
      run.seconds = std::max(run.seconds, 0.) + seconds - epoch_seconds;
      epoch_seconds = seconds;
    }
    run.last_epoch.clear();
    Flatten(line, "", run.last_epoch);
  };
  LOCKSTEP_ASSIGN_OR_RETURN(const bool exists, ForEachObject(path, add, &run.notes));
  if (lost > 0) run.notes.push_back(absl::StrCat(path, ": ", lost, " lines without an epoch, left out"));
  for (const auto& [name, curve] : run.epochs) {
    if (curve.gaps() == 0) continue;
    run.notes.push_back(absl::StrCat(path, ": ", name, " of ", curve.gaps(), " epochs is not finite"));
  }
  return exists;
}

absl::Status ReadRanks(const std::string& path, RunData& run) {
  size_t lost = 0;
  const auto add = [&](const Json& line) {
    const double number = Count(line, "rank");
    if (std::isnan(number) || (run.ranks.size() == kMostRanks && run.ranks.count(static_cast<int64_t>(number)) == 0)) {
      ++lost;
      return;
    }
    RankData& rank = run.ranks[static_cast<int64_t>(number)];
    rank.epochs += 1;
    const auto sum = [&](double& all, const char* key) {
      const double value = Count(line, key);
      if (!std::isnan(value)) all = std::max(all, 0.) + value;
    };
    const auto mean = [&](double& all, const char* key) {
      const double value = Number(line, key);
      if (value >= 0) all = all < 0 ? value : all + (value - all) / rank.epochs;
    };
    const auto highest = [&](double& all, const char* key) {
      const double value = Number(line, key);
      if (value > all) all = value;
    };
    sum(rank.seconds, "seconds");
    mean(rank.images_per_second, "images_per_second");
    mean(rank.data_wait_share, "data_wait_share");
    mean(rank.device_utilisation, "device_utilisation");
    highest(rank.peak_memory, "peak_memory_bytes");
    highest(rank.peak_device_memory, "peak_device_allocated_bytes");
  };
  LOCKSTEP_RETURN_IF_ERROR(ForEachObject(path, add, &run.notes).status());
  if (lost > 0) run.notes.push_back(absl::StrCat(path, ": ", lost, " lines without a rank, or of too many, left out"));
  return absl::OkStatus();
}

absl::Status ReadConfig(const std::string& path, RunData& run) {
  std::error_code error;
  if (!fs::exists(path, error) && !error) return absl::OkStatus();
  std::ifstream file;
  LOCKSTEP_RETURN_IF_ERROR(Open(path, file));
  std::string text(kLongestLine + 1, '\0');
  file.read(text.data(), static_cast<std::streamsize>(text.size()));
  text.resize(static_cast<size_t>(file.gcount()));
  const Json json = text.size() > kLongestLine ? Json() : Parse(text);
  if (json.is_object()) {
    Flatten(json, "", run.config);
    const auto is_unset = [](const auto& row) { return row.second == Text(Json()); };
    run.config.erase(std::remove_if(run.config.begin(), run.config.end(), is_unset), run.config.end());
  } else {
    run.notes.push_back(absl::StrCat(path, ": no JSON object, left out"));
  }
  return absl::OkStatus();
}

template <typename Member>
double Highest(const std::map<int64_t, RankData>& ranks, Member member) {
  double highest = -1;
  for (const auto& [number, rank] : ranks) highest = std::max(highest, rank.*member);
  return highest;
}

}  // namespace

double RunData::peak_memory() const { return Highest(ranks, &RankData::peak_memory); }
double RunData::peak_device_memory() const { return Highest(ranks, &RankData::peak_device_memory); }

absl::StatusOr<RunData> ReadRun(const std::string& folder) {
  std::error_code error;
  if (!fs::is_directory(folder, error)) {
    return absl::NotFoundError(absl::StrCat("folder ", folder, ": ", error ? error.message() : "not a folder"));
  }
  RunData run;
  run.folder = folder;
  fs::path name = fs::path(folder).lexically_normal();
  if (!name.has_filename()) name = name.parent_path();
  run.name = name.filename().string();
  if (run.name.empty() || run.name == "." || run.name == "..") run.name = fs::absolute(folder, error).string();
  run.name = Shortened(run.name, 60);
  StepScale scale;
  LOCKSTEP_ASSIGN_OR_RETURN(const bool steps, ReadSteps(folder + "/steps.jsonl", scale, run));
  LOCKSTEP_ASSIGN_OR_RETURN(const bool epochs, ReadEpochs(folder + "/metrics.jsonl", scale, run));
  if (!epochs && !steps) {
    return absl::NotFoundError(
        absl::StrCat("folder ", folder, ": no run's, it has neither a metrics.jsonl nor a steps.jsonl"));
  }
  LOCKSTEP_RETURN_IF_ERROR(ReadRanks(folder + "/ranks.jsonl", run));
  LOCKSTEP_RETURN_IF_ERROR(ReadConfig(folder + "/config.json", run));
  return run;
}

}  // namespace lockstep::internal
