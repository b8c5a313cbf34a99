#include "lockstep/trainer/metrics_log.h"

#include <nlohmann/json.hpp>
#include <stdexcept>

#include "lockstep/trainer/log_failure.h"

namespace lockstep {

absl::Status MetricsLog::Open(size_t first_epoch, size_t steps_done) {
  first_epoch_ = first_epoch;
  steps_done_ = steps_done;
  const absl::Status opened = metrics_.Open(folder_ + "/metrics.jsonl", first_epoch_, steps_done_);
  return opened.ok() && every_ > 0 ? OpenSteps() : opened;
}

absl::Status MetricsLog::OpenSteps() { return steps_.Open(folder_ + "/steps.jsonl", first_epoch_, steps_done_); }

void MetricsLog::OnStepEnd(StepInfo& info) {
  if (every_ == 0) return;
  if (info.epoch == first_epoch_ && info.step <= steps_done_) {  // an epoch that begins again after all
    steps_done_ = info.step - 1;
    const absl::Status opened = OpenSteps();
    if (!opened.ok()) throw std::runtime_error(std::string(opened.message()));
  }
  if (info.step % every_ != 0) return;
  nlohmann::ordered_json line;
  line["epoch"] = info.epoch;
  line["step"] = info.step;
  if (info.steps > 0) line["steps"] = info.steps;
  line["loss"] = info.LossValue();
  line["learning_rate"] = info.learning_rate;
  line["loss_scale"] = info.scaler == nullptr ? 1. : info.scaler->scale();
  line["skipped_steps"] = info.skipped;
  if (info.grad_norm.defined()) line["grad_norm"] = info.grad_norm.item<double>();
  ThrowOrWarn(steps_.Add(line.dump()), failure_is_error_);
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
  ThrowOrWarn(metrics_.Add(line.dump()), failure_is_error_);
}

}  // namespace lockstep
