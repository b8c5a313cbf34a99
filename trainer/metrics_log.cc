#include "lockstep/trainer/metrics_log.h"

#include <absl/strings/str_cat.h>

#include <cerrno>
#include <cstring>
#include <nlohmann/json.hpp>
#include <stdexcept>

#include "lockstep/base/atomic_file.h"

#include "lockstep/base/logging.h"

namespace lockstep {

namespace {

/// Removes the lines of what comes again, and what a crash has left of a line.
absl::Status DropLines(const std::string& path, size_t first_epoch, size_t steps_done) {
  std::ifstream in(path);
  if (!in) return absl::OkStatus();
  std::string kept;
  for (std::string line; std::getline(in, line);) {
    const auto json = nlohmann::json::parse(line, nullptr, /*allow_exceptions=*/false);
    const auto count = [&](const char* key, size_t otherwise) {
      return json.contains(key) && json[key].is_number_unsigned() ? json[key].get<size_t>() : otherwise;
    };
    if (!json.is_object()) continue;
    const size_t epoch = count("epoch", first_epoch + 1), step = count("step", steps_done + 1);
    if (epoch < first_epoch || (epoch == first_epoch && step <= steps_done)) kept += line + "\n";
  }
  return WriteFileAtomically(path, kept);
}

}  // namespace

absl::Status MetricsLog::Open(size_t first_epoch, size_t steps_done) {
  first_epoch_ = first_epoch;
  steps_done_ = steps_done;
  if (absl::Status opened = OpenFile(metrics_, "metrics.jsonl"); !opened.ok() || every_ == 0) return opened;
  return OpenFile(steps_, "steps.jsonl");
}

absl::Status MetricsLog::OpenFile(std::ofstream& file, const char* name) {
  const std::string path = absl::StrCat(folder_, "/", name);
  if (absl::Status dropped = DropLines(path, first_epoch_, steps_done_); !dropped.ok()) return dropped;
  file = std::ofstream(path, std::ios::app);
  if (file) return absl::OkStatus();
  return absl::UnavailableError(absl::StrCat("file ", path, ": cannot be written: ", std::strerror(errno)));
}

void MetricsLog::OnStepEnd(StepInfo& info) {
  if (every_ == 0) return;
  if (info.epoch == first_epoch_ && info.step <= steps_done_) {  // an epoch that begins again after all
    steps_done_ = info.step - 1;
    const absl::Status opened = OpenFile(steps_, "steps.jsonl");
    if (!opened.ok()) throw std::runtime_error(std::string(opened.message()));
  }
  if (info.step % every_ != 0) return;
  nlohmann::ordered_json line;
  line["epoch"] = info.epoch;
  line["step"] = info.step;
  line["loss"] = info.LossValue();
  line["learning_rate"] = info.learning_rate;
  line["loss_scale"] = info.scaler == nullptr ? 1. : info.scaler->scale();
  line["skipped_steps"] = info.skipped;
  if (info.grad_norm.defined()) line["grad_norm"] = info.grad_norm.item<double>();
  WriteLine(steps_, line.dump());
}

void MetricsLog::OnValidated(const EpochInfo& info) {
  nlohmann::ordered_json line;
  line["epoch"] = info.epoch;
  if (info.step > 0) line["step"] = info.step;
  for (const auto& [name, value] : info.metrics) {
    if (name == "stop_counter" || name == "skipped_steps") {
      line[name] = static_cast<int64_t>(value);
    } else {
      line[name] = value;
    }
  }
  WriteLine(metrics_, line.dump());
}

void MetricsLog::WriteLine(std::ofstream& file, const std::string& line) {
  file << line << std::endl;
  if (file) return;
  const std::string what = absl::StrCat("a metrics file in ", folder_, " cannot be written: ", std::strerror(errno));
  if (failure_is_error_) throw std::runtime_error(what);
  LOG(WARNING) << what;
  file.clear();
}

}  // namespace lockstep
