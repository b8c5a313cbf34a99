#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "lockstep/samplers/pass_sampler.h"

namespace lockstep {

struct LengthBatchSamplerOptions {
  size_t batch_size = 1;  ///< At most so many samples in a batch.
  /// At most so much in a batch that is padded to its longest sample: samples times that one's length; 0: no bound.
  size_t max_padded_length = 0;
  /// Samples of similar length are looked for among so many batches' worth at random; more of it pads less and shuffles
  /// less.
  size_t window = 50;
  bool shuffle = true;
  uint64_t seed = 0;  ///< The pass of epoch e is shuffled with seed + e; the same on all ranks.
  /// Drop the last batches, where not every rank gets one, instead of repeating others.
  bool drop_last = false;
};

/// Batches of samples of similar length, so that little is padded: samples are shuffled, sorted by length within
/// windows, and cut into batches (as LengthGroupedSampler of transformers does with megabatches). Neighbouring batches
/// go to different ranks at the same step, so that ranks have about as much to do; the steps are shuffled. All ranks
/// have the same number of batches.
///
/// It decides on the batches itself: `next` gives the next of them, whatever size it is asked for, so that a loader's
/// batch_size is that of these options, and its drop_last false.
class LengthBatchSampler : public PassSampler {
 public:
  static constexpr bool kDecidesBatches = true;

  /// `lengths` of all samples of the data set. Throws c10::Error when `rank` is not below `num_replicas`, when
  /// batch_size or window is 0, and when a sample alone is longer than max_padded_length.
  LengthBatchSampler(std::vector<size_t> lengths, size_t num_replicas, size_t rank,
                     LengthBatchSamplerOptions options = {});

  /// Of the current pass; the same on all ranks.
  size_t num_batches() const { return Current().batch_ends.size(); }

 protected:
  Pass MakePass(size_t epoch) const override;

 private:
  using Batch = std::vector<size_t>;
  std::vector<Batch> Batches(std::vector<size_t> order) const;

  std::shared_ptr<const std::vector<size_t>> lengths_;
  size_t num_replicas_;
  size_t rank_;
  LengthBatchSamplerOptions options_;
};

}  // namespace lockstep
