#pragma once

#include <chrono>
#include <cstddef>
#include <optional>
#include <vector>

#include "lockstep/data/batch_source.h"

namespace lockstep {

/// A source that measures how long one waits for its batches; all else is the source's that it wraps, and doesn't own.
template <typename Batch>
class TimedSource : public BatchSource<Batch> {
 public:
  explicit TimedSource(BatchSource<Batch>& source) : source_(source) {}

  /// In Next and at the start of passes, of all passes together.
  double seconds() const { return std::chrono::duration<double>(waited_).count(); }

  void StartEpoch(size_t epoch) override {
    const Timer timer(waited_);
    source_.StartEpoch(epoch);
  }
  std::optional<Batch> Next() override {
    const Timer timer(waited_);
    return source_.Next();
  }
  size_t num_batches() const override { return source_.num_batches(); }
  bool Skip(size_t batches) override { return source_.Skip(batches); }
  std::optional<size_t> SamplesIn(size_t batches) const override { return source_.SamplesIn(batches); }
  bool StartRest(size_t epoch, const std::vector<EpochPart>& done) override { return source_.StartRest(epoch, done); }

 private:
  using Clock = std::chrono::steady_clock;

  struct Timer {
    explicit Timer(Clock::duration& sum) : sum(sum) {}
    ~Timer() { sum += Clock::now() - begin; }
    Clock::duration& sum;
    const Clock::time_point begin = Clock::now();
  };

  BatchSource<Batch>& source_;
  Clock::duration waited_{};
};

}  // namespace lockstep
