#pragma once

#include <cstddef>
#include <optional>

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
};

}  // namespace lockstep
