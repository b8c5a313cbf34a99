#pragma once

#include <absl/status/statusor.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/checkpoint/value.h"
#include "lockstep/comm/collectives.h"
#include "lockstep/metrics/metric_sums.h"
#include "lockstep/samplers/epoch_part.h"

namespace lockstep {

/// Where a run stands between two batches, so that it can go on from there.
struct RunProgress {
  // The same on all ranks.
  size_t epoch = 1;                ///< In progress, or the next; from 1.
  bool in_epoch = false;           ///< It has begun; all the below that is of an epoch is of this one.
  size_t step = 0;                 ///< Steps of the epoch so far.
  size_t skipped = 0;              ///< Those of them that the scaler skipped.
  size_t steps_before_pass = 0;    ///< Steps of the epoch before the pass over its rest began (see `earlier`).
  size_t total_steps = 0;          ///< Of all epochs so far.
  double seconds = 0;              ///< That the epoch's training took so far, on rank 0.
  std::vector<EpochPart> earlier;  ///< What other worlds of ranks took of the epoch before the pass began.
  std::map<std::string, double> skip_streak;  ///< FiniteCheck's.

  // This rank's.
  size_t batches = 0;          ///< Taken since the pass began.
  Value taken;                 ///< Samples in them; None where the source doesn't know.
  int64_t samples = 0;         ///< Of the epoch, as the steps have counted them.
  MetricSums sums, step_sums;  ///< Of the epoch's steps; of the one in progress.
  Value window;                ///< GradientStep's state.
  at::Tensor loss;             ///< Of the last step in which this rank had a batch.
  /// States of the generators: when the pass began, before the next batch was fetched, and now.
  Value generators_at_start, generators_before_batch, generators;
};

/// Everything as one value, on rank 0, with every rank's part under "ranks". Collective.
absl::StatusOr<Value> SaveRunProgress(const RunProgress& progress, const ProcessGroupPtr& group);

struct LoadedRun {
  RunProgress progress;
  size_t world_size = 0;          ///< Of the ranks that saved it.
  std::optional<EpochPart> part;  ///< What those took in their last pass; nothing if their source didn't know.
};

/// This rank's view of what was saved. Where the world has another size now: rank 0 takes all sums, `join_windows`
/// makes `window` of all ranks' states, the generators of a rank that was not there are None, and `batches` is 0.
/// InvalidArgument for what is no such state.
absl::StatusOr<LoadedRun> LoadRunProgress(const Value& state,
                                          const std::function<absl::StatusOr<Value>(const ValueList&)>& join_windows,
                                          const ProcessGroupPtr& group);

}  // namespace lockstep
