#include "lockstep/trainer/tensor_board_log.h"

#include <absl/strings/str_replace.h>

#include <vector>

#include "lockstep/trainer/log_failure.h"

namespace lockstep {

absl::Status TensorBoardLog::Open(size_t total_steps, const std::string& config) {
  total_steps_ = total_steps;
  const absl::Status opened = writer_.Open(folder_, static_cast<int64_t>(total_steps) + 1);
  if (!opened.ok() || config.empty()) return opened;
  // Indented lines are shown as they are.
  return writer_.AddText(static_cast<int64_t>(total_steps) + 1, "config",
                         "    " + absl::StrReplaceAll(config, {{"\n", "\n    "}}));
}

void TensorBoardLog::OnStepEnd(StepInfo& info) {
  ++total_steps_;
  if (every_ == 0 || info.step % every_ != 0) return;
  std::vector<std::pair<std::string, double>> scalars = {
      {"step/loss", info.LossValue()},
      {"step/learning_rate", info.learning_rate},
      {"step/loss_scale", info.scaler == nullptr ? 1. : info.scaler->scale()},
      {"step/skipped_steps", static_cast<double>(info.skipped)}};
  if (info.grad_norm.defined()) scalars.emplace_back("step/grad_norm", info.grad_norm.item<double>());
  ThrowOrWarn(writer_.AddScalars(static_cast<int64_t>(total_steps_), scalars), failure_is_error_);
}

void TensorBoardLog::OnValidated(const EpochInfo& info) {
  std::vector<std::pair<std::string, double>> scalars;
  for (const auto& [name, value] : info.metrics) scalars.emplace_back("epoch/" + name, value);
  ThrowOrWarn(writer_.AddScalars(static_cast<int64_t>(total_steps_), scalars), failure_is_error_);
}

}  // namespace lockstep
