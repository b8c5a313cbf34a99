#pragma once

#include <torch/optim/optimizer.h>
#include <torch/optim/schedulers/reduce_on_plateau_scheduler.h>

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/optim/schedule.h"

namespace lockstep {

/// One of LibTorch's own schedulers, such as torch::optim::StepLR, or one derived from their base, as a Schedule. It
/// counts as that one does.
class LibTorchSchedule : public Schedule {
 public:
  /// `inner` is of the same optimizer.
  LibTorchSchedule(torch::optim::Optimizer& optimizer, std::unique_ptr<torch::optim::LRScheduler> inner);

  /// {"inner", "_last_lr"}
  Value SaveState() override;
  absl::Status LoadState(const Value& state) override;

 protected:
  std::vector<double> get_lrs() override;

 private:
  const std::unique_ptr<torch::optim::LRScheduler> inner_;
};

/// LibTorch's ReduceLROnPlateauScheduler as a Schedule. That one shows nothing of its state, so all metrics are kept,
/// in its precision, and given to it again by LoadState.
class LibTorchPlateauSchedule : public Schedule {
 public:
  /// `inner` is of the same optimizer, and has not stepped.
  LibTorchPlateauSchedule(torch::optim::Optimizer& optimizer,
                          std::unique_ptr<torch::optim::ReduceLROnPlateauScheduler> inner,
                          std::string monitor = "val_loss");

  /// Throws c10::Error without a metric.
  void Step(std::optional<double> metric = std::nullopt) override;
  std::string monitor() const override { return monitor_; }

  /// {"base_lrs", "metrics"}
  Value SaveState() override;
  /// InvalidArgument also when it has stepped.
  absl::Status LoadState(const Value& state) override;

 protected:
  std::vector<double> get_lrs() override;

 private:
  const std::unique_ptr<torch::optim::ReduceLROnPlateauScheduler> inner_;
  const std::string monitor_;
  const std::vector<double> base_rates_;
  std::optional<double> metric_;  // of the step that is being made
  std::vector<double> metrics_;
};

}  // namespace lockstep
