#pragma once

#include <cstddef>
#include <optional>
#include <vector>

#include "lockstep/samplers/epoch_part.h"

namespace lockstep {

/// Where a trainer's batches come from: any type of batch, one pass an epoch.
template <typename Batch>
class BatchSource {
 public:
  virtual ~BatchSource() = default;
  /// Starts the pass of `epoch` (from 0); the order may depend on it.
  virtual void StartEpoch(size_t epoch) = 0;
  /// The next batch, or nothing at the end of the pass. Throws what reading the data throws; our sources throw also
  /// before the first StartEpoch.
  virtual std::optional<Batch> Next() = 0;
  /// Batches in a pass, 0 if not known; for progress only.
  virtual size_t num_batches() const { return 0; }

  // For a run that goes on in the middle of an epoch.

  /// Leaves out the next batches of the pass. False when there are not so many.
  virtual bool Skip(size_t batches) {
    while (batches > 0 && Next()) --batches;
    return batches == 0;
  }
  /// Samples in the first `batches` batches of this pass; nothing if not known.
  virtual std::optional<size_t> SamplesIn(size_t batches) const { return std::nullopt; }
  /// Starts a pass over what is left of `epoch` after what other worlds of ranks have taken. False, and nothing is
  /// started, where that can't be told.
  virtual bool StartRest(size_t epoch, const std::vector<EpochPart>& done) { return false; }
};

}  // namespace lockstep
