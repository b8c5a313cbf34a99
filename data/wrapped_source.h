#pragma once

#include <cstddef>
#include <optional>
#include <vector>

#include "lockstep/data/batch_source.h"
#include "lockstep/samplers/epoch_part.h"

namespace lockstep {

/// A source that passes everything on to another one, which it doesn't own: the base of those that change one thing.
template <typename Batch>
class WrappedSource : public BatchSource<Batch> {
 public:
  explicit WrappedSource(BatchSource<Batch>& source) : source_(source) {}

  void StartEpoch(size_t epoch) override { source_.StartEpoch(epoch); }
  std::optional<Batch> Next() override { return source_.Next(); }
  size_t num_batches() const override { return source_.num_batches(); }
  bool Skip(size_t batches) override { return source_.Skip(batches); }
  std::optional<size_t> SamplesIn(size_t batches) const override { return source_.SamplesIn(batches); }
  bool StartRest(size_t epoch, const std::vector<EpochPart>& done) override { return source_.StartRest(epoch, done); }

 private:
  BatchSource<Batch>& source_;
};

}  // namespace lockstep
