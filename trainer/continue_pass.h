#pragma once

#include <absl/status/status.h>
#include <absl/strings/str_cat.h>

#include <optional>
#include <utility>

#include "lockstep/base/status_macros.h"
#include "lockstep/comm/agree.h"
#include "lockstep/data/batch_source.h"
#include "lockstep/trainer/batch_stream.h"
#include "lockstep/trainer/generators.h"
#include "lockstep/trainer/run_progress.h"
#include "lockstep/trainer/run_state.h"

namespace lockstep {

/// Takes up the pass of an epoch where the run `loaded` left it: with the next batch, or, in a world of another size or
/// with batches of another size, with what is left of the samples, shared out anew. False where the source can't tell
/// what is left, and nothing is started. Errors, on all ranks: fewer batches than the run has had. Collective.
template <typename Batch>
absl::StatusOr<bool> ContinuePass(BatchSource<Batch>& source, BatchStream<Batch>& batches, const LoadedRun& loaded,
                                  RunProgress& progress, c10::DeviceType device, const ProcessGroupPtr& group) {
  const size_t epoch = progress.epoch - 1;
  const auto samples = source.SamplesIn(progress.batches);
  const auto taken = progress.taken.number();
  const bool differs = loaded.world_size != static_cast<size_t>(GetWorldSize(group)) ||
                       (samples && taken.ok() && static_cast<double>(*samples) != *taken);
  if (AnyRank(differs, group)) {
    if (loaded.part) progress.earlier.push_back(*loaded.part);
    progress.batches = 0;
    progress.steps_before_pass = progress.step;
    progress.generators_at_start = GeneratorsState(device);
    return loaded.part && source.StartRest(epoch, progress.earlier);
  }
  // The order may be drawn at the start of a pass, and a batch when it is fetched.
  const Value now = GeneratorsState(device);
  absl::Status status = LoadGeneratorsState(progress.generators_at_start, device);
  bool enough = false;
  if (status.ok()) {
    bool started = true;
    if (progress.earlier.empty()) {
      source.StartEpoch(epoch);
    } else {
      started = source.StartRest(epoch, progress.earlier);
    }
    enough = started && batches.Skip(progress.batches);
    status = LoadGeneratorsState(progress.generators_before_batch, device);
  }
  if (status.ok() && !enough) {
    status = absl::InvalidArgumentError(absl::StrCat("epoch ", progress.epoch,
                                                     ": the training data has fewer batches than the ",
                                                     progress.batches, " that the run has had of it"));
  }
  if (status.ok()) batches.Fetch(std::nullopt);
  LOCKSTEP_RETURN_IF_ERROR(AgreeOnStatus(status, group));
  LOCKSTEP_RETURN_IF_ERROR(LoadGeneratorsState(now, device));
  return true;
}

}  // namespace lockstep
