#include "lockstep/trainer/metrics_log.h"

#include <absl/strings/str_cat.h>

#include <cerrno>
#include <cstring>
#include <nlohmann/json.hpp>
#include <stdexcept>

#include "lockstep/checkpoint/atomic_file.h"

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
    if (!json.is_object()) continue;
    const size_t epoch = json.value("epoch", size_t{0}), step = json.value("step", steps_done + 1);
    if (epoch < first_epoch || (epoch == first_epoch && step <= steps_done)) kept += line + "\n";
  }
  return WriteFileAtomically(path, kept);
}

}  // namespace

absl::Status MetricsLog::Open(size_t first_epoch, size_t steps_done) {
  for (auto [file, name] : {std::pair{&metrics_, "metrics.jsonl"}, std::pair{&steps_, "steps.jsonl"}}) {
    if (file == &steps_ && every_ == 0) continue;
    const std::string path = absl::StrCat(folder_, "/", name);
    if (absl::Status dropped = DropLines(path, first_epoch, steps_done); !dropped.ok()) return dropped;
    file->open(path, std::ios::app);
    if (!*file)
      return absl::UnavailableError(absl::StrCat("file ", path, ": cannot be written: ", std::strerror(errno)));
  }
  return absl::OkStatus();
}

void MetricsLog::OnStepEnd(StepInfo& info) {
  if (every_ == 0 || info.step % every_ != 0) return;
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
