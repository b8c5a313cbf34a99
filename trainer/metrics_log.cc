#include "lockstep/trainer/metrics_log.h"

#include <absl/strings/str_cat.h>

#include <cerrno>
#include <cstring>
#include <nlohmann/json.hpp>
#include <stdexcept>

namespace lockstep {

absl::Status MetricsLog::Open() {
  for (auto [file, name] : {std::pair{&metrics_, "metrics.jsonl"}, std::pair{&steps_, "steps.jsonl"}}) {
    if (file == &steps_ && every_ == 0) continue;
    const std::string path = absl::StrCat(folder_, "/", name);
    file->open(path, std::ios::app);
    if (!*file) return absl::UnavailableError(absl::StrCat("file ", path, ": cannot be written: ", std::strerror(errno)));
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
  WriteLine(steps_, line.dump());
}

void MetricsLog::OnEpochEnd(const EpochInfo& info) {
  nlohmann::ordered_json line;
  line["epoch"] = info.epoch;
  for (const auto& [name, value] : info.metrics) {
    if (name == "stop_counter") {
      line[name] = static_cast<int64_t>(value);
    } else {
      line[name] = value;
    }
  }
  WriteLine(metrics_, line.dump());
}

void MetricsLog::WriteLine(std::ofstream& file, const std::string& line) {
  file << line << std::endl;
  if (!file) throw std::runtime_error(absl::StrCat("a metrics file in ", folder_, " cannot be written: ", std::strerror(errno)));
}

}  // namespace lockstep
