#pragma once

#include <absl/status/status.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>

#include "lockstep/metrics/event_writer.h"
#include "lockstep/trainer/observer.h"

namespace lockstep {

/// Writes what MetricsLog does for TensorBoard, into a file of its own for each start of a run: step/loss,
/// step/learning_rate, step/loss_scale, step/skipped_steps and, where gradients are clipped, step/grad_norm, every
/// `every` steps, and each metric of an epoch as epoch/<metric>, all of them over the steps of the whole run. On one
/// rank of a run. What can't be written throws, or is a warning.
class TensorBoardLog : public TrainObserver {
 public:
  /// `every` of 0: no steps.
  TensorBoardLog(std::string folder, size_t every, bool failure_is_error = true)
      : folder_(std::move(folder)), every_(every), failure_is_error_(failure_is_error) {}

  /// Begins a file for a run that has done `total_steps` steps (Trainer::total_steps()); what a run before it had of
  /// later ones is dropped. `config` is shown as a text, as it is; empty: none.
  absl::Status Open(size_t total_steps = 0, const std::string& config = "");

  void OnStepEnd(StepInfo& info) override;
  void OnValidated(const EpochInfo& info) override;

  const std::string& path() const { return writer_.path(); }

 private:
  const std::string folder_;
  const size_t every_;
  const bool failure_is_error_;
  EventWriter writer_;
  size_t total_steps_ = 0;
};

}  // namespace lockstep
