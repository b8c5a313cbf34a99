#pragma once

#include <absl/status/status.h>

#include <string>

#include "lockstep/trainer/json_lines.h"
#include "lockstep/trainer/observer.h"

namespace lockstep {

/// Appends an object per epoch to `<folder>/metrics.jsonl` (epoch and every metric; also one per validation inside an
/// epoch, with its step) and, every `every` steps, one to `<folder>/steps.jsonl` (epoch, step, steps of the epoch where
/// known, loss, learning_rate, loss_scale, skipped_steps of the epoch so far, and grad_norm where gradients are
/// clipped, of this rank). Numbers that are not finite are null. On one rank of a run. A line that can't be written
/// throws, or is a warning. `images_per_second` and `seconds` are measured; all else is the same in every run with the
/// same configuration.
class MetricsLog : public TrainObserver {
 public:
  /// `every` of 0: no steps.
  MetricsLog(std::string folder, size_t every, bool failure_is_error = true)
      : folder_(std::move(folder)), every_(every), failure_is_error_(failure_is_error) {}

  /// Opens the files for a run that begins in `first_epoch` after `steps_done` steps of it. What was before is kept,
  /// lines of what comes again are dropped.
  absl::Status Open(size_t first_epoch = 1, size_t steps_done = 0);

  void OnStepEnd(StepInfo& info) override;
  /// Before the epoch's checkpoint, so that no saved epoch lacks its line.
  void OnValidated(const EpochInfo& info) override;

 private:
  absl::Status OpenSteps();
  const std::string folder_;
  const size_t every_;
  const bool failure_is_error_;
  JsonLines metrics_, steps_;
  size_t first_epoch_ = 1, steps_done_ = 0;  // lines up to these are there
};

}  // namespace lockstep
