#pragma once

#include <torch/optim/optimizer.h>

#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/optim/schedule.h"

namespace lockstep {

/// The names and defaults are those of Python's ReduceLROnPlateau, but for `monitor`.
struct ReduceOnPlateauOptions {
  enum class Mode { kMin, kMax };
  enum class ThresholdMode { kRel, kAbs };

  std::string monitor = "val_loss";  ///< The metric that the trainer steps it with.
  Mode mode = Mode::kMin;            ///< Whether less or more of it is better.
  double factor = 0.1;               ///< What the rates are multiplied by: from 0 to below 1.
  int64_t patience = 10;             ///< Steps without improvement that are let pass; the next one reduces the rates.
  double threshold = 1e-4;           ///< Better means better by more than this, a part of the best or a difference.
  ThresholdMode threshold_mode = ThresholdMode::kRel;
  int64_t cooldown = 0;        ///< Steps after a reduction that don't count against patience.
  std::vector<double> min_lr;  ///< No rate gets lower: one for all parameter groups, or one for each; none: 0.
  double eps = 1e-8;           ///< A change of a rate that isn't larger than this isn't made.
};

/// Reduces the rates when a metric has stopped improving, as Python's ReduceLROnPlateau, number for number. NaN is no
/// improvement. Each step is a Step(metric); in the trainer it steps after epochs (not with schedule_each_step).
/// Where ranks may see different metrics, share them first: each rank sets its own optimizer's rates.
class ReduceOnPlateau : public Schedule {
 public:
  /// Throws c10::Error for options that make no sense.
  explicit ReduceOnPlateau(torch::optim::Optimizer& optimizer, ReduceOnPlateauOptions options = {});

  void Step(std::optional<double> metric = std::nullopt) override;
  std::string monitor() const override { return options_.monitor; }

  /// {"best", "num_bad_epochs", "cooldown_counter", "last_epoch", "_last_lr"}, by which Python's calls them.
  Value SaveState() override;
  absl::Status LoadState(const Value& state) override;

 protected:
  std::vector<double> get_lrs() override;

 private:
  bool Better(double metric) const;

  const ReduceOnPlateauOptions options_;
  std::optional<double> metric_;  // of the step that is being made
  double best_;
  int64_t bad_ = 0, cooldown_ = 0;
};

}  // namespace lockstep
