#pragma once

#include <algorithm>
#include <cstddef>
#include <optional>
#include <vector>

#include "lockstep/data/batch_source.h"
#include "lockstep/data/wrapped_source.h"
#include "lockstep/samplers/epoch_part.h"

namespace lockstep {

/// The first batches of another source's passes.
template <typename Batch>
class LimitedSource : public WrappedSource<Batch> {
 public:
  /// `limit` of 0: all. With `one_epoch` every pass is that of epoch 0, so that it has the same batches. `source` is
  /// not owned.
  LimitedSource(BatchSource<Batch>& source, size_t limit, bool one_epoch = false)
      : WrappedSource<Batch>(source), limit_(limit), one_epoch_(one_epoch) {}

  void StartEpoch(size_t epoch) override {
    WrappedSource<Batch>::StartEpoch(one_epoch_ ? 0 : epoch);
    taken_ = 0;
  }

  std::optional<Batch> Next() override {
    if (limit_ > 0 && taken_ == limit_) return std::nullopt;
    ++taken_;
    return WrappedSource<Batch>::Next();
  }

  size_t num_batches() const override {
    const size_t all = WrappedSource<Batch>::num_batches();
    return limit_ == 0 ? all : all == 0 ? limit_ : std::min(all, limit_);
  }

  bool Skip(size_t batches) override {
    if (limit_ > 0 && batches > limit_ - taken_) return false;
    taken_ += batches;
    return WrappedSource<Batch>::Skip(batches);
  }

  /// Not with a limit: which samples are left of it nobody knows.
  bool StartRest(size_t epoch, const std::vector<EpochPart>& done) override {
    taken_ = 0;
    return limit_ == 0 && WrappedSource<Batch>::StartRest(one_epoch_ ? 0 : epoch, done);
  }

 private:
  const size_t limit_;
  const bool one_epoch_;
  size_t taken_ = 0;
};

}  // namespace lockstep
