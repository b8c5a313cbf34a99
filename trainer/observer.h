#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>

#include "lockstep/amp/loss_scaler.h"
#include "lockstep/metrics/metric_sums.h"

namespace lockstep {

/// Where training stands. Epochs and steps count from 1, as people read them.
struct StepInfo {
  size_t epoch = 0;
  size_t epochs = 0;    ///< The last epoch that is planned.
  size_t step = 0;      ///< Within the epoch.
  size_t steps = 0;     ///< Of the epoch, 0 if not known.
  int64_t samples = 0;  ///< Of this rank in this epoch so far.
  double seconds = 0;   ///< Since the epoch's training began.
  double learning_rate = 0;
  bool stepped = true;  ///< False when the scaler skipped the step.
  size_t skipped = 0;   ///< Steps of this epoch that it skipped so far.
  at::Tensor loss;      ///< The mean over this rank's batches of the step, on its device.
  const MetricSums* sums =
      nullptr;           ///< Of loss and metrics, over this rank's samples of the step; Reduce is collective.
  at::Tensor grad_norm;  ///< Before it was clipped, on its device; undefined unless it is.
  const LossScaler* scaler = nullptr;  ///< Its scale() waits for the device, as LossValue() does.

  /// The loss as a number. The first call brings it to the host.
  double LossValue() {
    if (!loss_value) loss_value = loss.item<double>();
    return *loss_value;
  }
  std::optional<double> loss_value;
};

struct EpochInfo {
  size_t epoch = 0;
  size_t epochs = 0;
  /// train_loss, val_loss, train_accuracy, …, learning_rate, stop_counter, images_per_second, seconds; with a scaler
  /// that scales also loss_scale and skipped_steps.
  std::map<std::string, double> metrics;
  bool improved = false;
  size_t step = 0;  ///< Where in the epoch it was; 0: at its end.
};

/// Is told what happens; each function does nothing unless overridden. Called on every rank. What it throws ends the
/// training with that exception; thrown on one rank alone, the others fail at their next collective.
class TrainObserver {
 public:
  virtual ~TrainObserver() = default;

  /// Asks for the training to end, from any of the functions below and on any rank. All ranks hear it at the next
  /// validation; a batch later where StopSignals, max_minutes or saves by the minute have the ranks talk anyway.
  void AskToStop(std::string reason) { stop_wish_ = std::move(reason); }
  /// The reason; empty: none was given.
  const std::string& stop_wish() const { return stop_wish_; }

  virtual void OnFitStart() {}
  virtual void OnEpochStart(size_t epoch) {}
  /// Before the first batch of a step.
  virtual void OnStepStart() {}
  virtual void OnStepEnd(StepInfo& info) {}
  /// Before the module is switched to evaluation, once a validation, test or prediction.
  virtual void OnValidationStart() {}
  /// When that is over, also by an error; in a training after the best state was saved.
  virtual void OnValidationEnd() {}
  /// After a validation, and at the end of an epoch also without one.
  virtual void OnValidated(const EpochInfo& info) {}
  virtual void OnSaved(const std::string& path) {}
  virtual void OnEpochEnd(const EpochInfo& info) {}
  virtual void OnStopped(const std::string& reason) {}
  /// Training ends with an error, thrown or returned.
  virtual void OnException(const std::string& what) {}
  virtual void OnFitEnd() {}

 private:
  std::string stop_wish_;
};

}  // namespace lockstep
