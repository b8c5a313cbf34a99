#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

namespace lockstep {

/// What a reducer has done, on this rank. Times are those of the CPU: with NCCL they end when a bucket is launched.
struct ReducerStatistics {
  using Clock = std::chrono::steady_clock;

  /// One bucket's communication in the last backward.
  struct BucketEvent {
    int64_t bytes = 0;
    Clock::time_point launched, done;
  };

  int64_t backwards = 0;  ///< That were averaged.
  size_t buckets = 0;
  int64_t bytes = 0;                 ///< Of all buckets: what a backward communicates.
  double communication_seconds = 0;  ///< In which at least one bucket was under way, over all backwards.
  double overlapped_seconds = 0;     ///< The part of it that lay within backward.

  std::vector<BucketEvent> last;         ///< Of the last backward, in the order of their launch.
  Clock::time_point backward_end;        ///< When it had made its last gradient.
  std::vector<std::string> ready_order;  ///< Parameters in the order in which it made their gradients ready.
};

}  // namespace lockstep
