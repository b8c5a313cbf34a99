#pragma once

#include <absl/status/status.h>
#include <c10/core/Device.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "lockstep/comm/collectives.h"
#include "lockstep/metrics/device_utilisation.h"
#include "lockstep/trainer/json_lines.h"
#include "lockstep/trainer/observer.h"

namespace lockstep {

struct ResourceLogOptions {
  std::string folder;  ///< Of the run.
  c10::Device device = c10::kCPU;
  std::function<double()> data_wait_seconds;  ///< As TimedSource::seconds() of the training source; may be empty.
  bool failure_is_error = true;  ///< Whether a line that can't be written ends the training; else a warning.
};

/// What each rank used in each epoch, an object per epoch and rank in `<folder>/ranks.jsonl`:
///   epoch, rank,
///   seconds                      of training, without the validation
///   images_per_second            of this rank, in training
///   data_wait_share              of the training, in which it waited for batches
///   peak_memory_bytes            of the process, resident; where the system lets nobody begin anew, since its start
///   peak_device_allocated_bytes  what tensors had at most on a CUDA device
///   peak_device_reserved_bytes   what LibTorch had taken from it for them at most
///   device_utilisation           mean share of the time in which the device was busy, by NVML
/// What can't be measured is left out. All of it is measured, and differs from run to run. On every rank of the group:
/// the end of an epoch is collective; rank 0 writes. What can't be written throws on all ranks, or is a warning.
class ResourceLog : public TrainObserver {
 public:
  ResourceLog(ResourceLogOptions options, ProcessGroupPtr group);

  /// On all ranks, before the training: opens the file for a run that begins in `first_epoch`, whose lines, and later
  /// ones, are dropped. Collective.
  absl::Status Open(size_t first_epoch = 1);

  void OnEpochStart(size_t epoch) override;
  void OnStepEnd(StepInfo& info) override;
  void OnValidationStart() override;
  void OnValidationEnd() override;
  void OnEpochEnd(const EpochInfo& info) override;

 private:
  using Clock = std::chrono::steady_clock;

  double Waited() const { return options_.data_wait_seconds ? options_.data_wait_seconds() : 0; }
  void Pause();
  std::string Line(size_t epoch) const;

  const ResourceLogOptions options_;
  const ProcessGroupPtr group_;
  const std::unique_ptr<DeviceUtilisation> utilisation_;
  JsonLines file_;  // on rank 0

  // Of this epoch.
  Clock::time_point start_, last_sample_;
  bool training_ = false;
  double here_seconds_ = 0, waited_ = 0,
         waited_before_ = 0;  // in this process, which may have taken the epoch up in its middle
  double seconds_ = 0;        // of the whole epoch's training
  int64_t samples_ = 0;
  double utilisation_sum_ = 0;
  int utilisation_count_ = 0;
};

}  // namespace lockstep
