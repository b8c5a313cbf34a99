#pragma once

#include <absl/status/statusor.h>

#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/metrics/internal/thinned_curve.h"

namespace lockstep::internal {

/// What ranks.jsonl says of a rank, over all its epochs. Negative: it says nothing.
struct RankData {
  double epochs = 0;
  double seconds = -1;            ///< Sum.
  double images_per_second = -1;  ///< Mean over epochs, as are all that follow but for peaks.
  double data_wait_share = -1;
  double peak_memory = -1;         ///< Bytes resident, the highest.
  double peak_device_memory = -1;  ///< Bytes allocated on the device, the highest.
  double device_utilisation = -1;
};

/// A training run, as the files in its folder tell it.
struct RunData {
  std::string name, folder;
  /// Positions are in epochs: step s of S in epoch e is at e - 1 + s / S, the end of epoch e at e.
  ThinnedCurve step_loss, step_accuracy, learning_rate;
  std::map<std::string, ThinnedCurve> epochs;  ///< Metrics named train_… and val_…, and learning_rate.
  std::vector<std::pair<std::string, std::string>> last_epoch;  ///< All metrics of the last line, as texts.
  std::vector<std::pair<std::string, std::string>> config;      ///< In the file's order.
  std::map<int64_t, RankData> ranks;
  double seconds = -1;             ///< Of all epochs together.
  std::vector<std::string> notes;  ///< What was left out, and why.

  double peak_memory() const;         ///< The highest of all ranks, or negative.
  double peak_device_memory() const;  ///< Likewise.
};

/// Reads config.json, metrics.jsonl, steps.jsonl and ranks.jsonl, each of which may be missing, but not both of metrics
/// and steps. A line that is no JSON object is left out and noted, with its number. Memory is bounded, whatever the
/// files hold. Errors: no such folder; a file that can't be read; nothing of a run in it.
absl::StatusOr<RunData> ReadRun(const std::string& folder);

}  // namespace lockstep::internal
