#pragma once

#include <chrono>
#include <cstddef>
#include <optional>

#include "lockstep/data/wrapped_source.h"

namespace lockstep {

/// A source that measures how long one waits for its batches; all else is the source's that it wraps, and doesn't own.
template <typename Batch>
class TimedSource : public WrappedSource<Batch> {
 public:
  using WrappedSource<Batch>::WrappedSource;

  /// In Next and at the start of passes, of all passes together.
  double seconds() const { return std::chrono::duration<double>(waited_).count(); }

  void StartEpoch(size_t epoch) override {
    const Timer timer(waited_);
    WrappedSource<Batch>::StartEpoch(epoch);
  }
  std::optional<Batch> Next() override {
    const Timer timer(waited_);
    return WrappedSource<Batch>::Next();
  }

 private:
  using Clock = std::chrono::steady_clock;

  struct Timer {
    explicit Timer(Clock::duration& sum) : sum(sum) {}
    ~Timer() { sum += Clock::now() - begin; }
    Clock::duration& sum;
    const Clock::time_point begin = Clock::now();
  };

  Clock::duration waited_{};
};

}  // namespace lockstep
