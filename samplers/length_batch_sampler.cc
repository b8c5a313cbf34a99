#include "lockstep/samplers/length_batch_sampler.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <limits>
#include <numeric>
#include <utility>

#include "lockstep/samplers/internal/permutation.h"

namespace lockstep {

LengthBatchSampler::LengthBatchSampler(std::vector<size_t> lengths, size_t num_replicas, size_t rank,
                                       LengthBatchSamplerOptions options)
    : lengths_(std::make_shared<const std::vector<size_t>>(std::move(lengths))),
      num_replicas_(num_replicas),
      rank_(rank),
      options_(options) {
  TORCH_CHECK(rank < num_replicas, "LengthBatchSampler: rank ", rank, " is not below num_replicas ", num_replicas);
  TORCH_CHECK(options.batch_size > 0 && options.window > 0,
              "LengthBatchSampler: batch_size and window must be at least 1, are ", options.batch_size, " and ",
              options.window);
  for (size_t i = 0; i < lengths_->size() && options.max_padded_length > 0; ++i) {
    TORCH_CHECK(lengths_->at(i) <= options.max_padded_length, "LengthBatchSampler: sample ", i, " has length ",
                lengths_->at(i), ", more than max_padded_length ", options.max_padded_length);
  }
}

/// Sorts each window of the order by length, and cuts it.
std::vector<LengthBatchSampler::Batch> LengthBatchSampler::Batches(std::vector<size_t> order) const {
  const auto& lengths = *lengths_;
  const size_t most = options_.max_padded_length > 0 ? options_.max_padded_length : std::numeric_limits<size_t>::max();
  const size_t batches = std::min(options_.window, order.size() / options_.batch_size + 1);
  std::vector<Batch> result;
  for (size_t begin = 0; begin < order.size();) {
    const size_t end = begin + std::min(batches * options_.batch_size, order.size() - begin);
    std::stable_sort(order.begin() + begin, order.begin() + end,
                     [&](size_t a, size_t b) { return lengths[a] > lengths[b]; });
    for (Batch batch; begin < end;) {
      batch.push_back(order[begin++]);  // the first one is the longest
      const size_t fit = lengths[batch[0]] == 0 ? most : most / lengths[batch[0]];
      if (begin == end || batch.size() == std::min(options_.batch_size, fit))
        result.push_back(std::exchange(batch, {}));
    }
  }
  return result;
}

PassSampler::Pass LengthBatchSampler::MakePass(size_t epoch) const {
  std::vector<size_t> order(lengths_->size());
  std::iota(order.begin(), order.end(), size_t{0});
  if (options_.shuffle) order = Permutation(order.size(), options_.seed + epoch);
  const std::vector<Batch> batches = Batches(std::move(order));

  const size_t whole = batches.size() / num_replicas_;
  const size_t steps = whole + (options_.drop_last || batches.size() % num_replicas_ == 0 ? 0 : 1);
  std::vector<size_t> step_order(steps);
  std::iota(step_order.begin(), step_order.end(), size_t{0});
  if (options_.shuffle) step_order = Permutation(steps, options_.seed + epoch);

  Pass pass;
  for (const size_t step : step_order) {
    const Batch& mine = batches[(step * num_replicas_ + rank_) % batches.size()];
    pass.indices.insert(pass.indices.end(), mine.begin(), mine.end());
    pass.batch_ends.push_back(pass.indices.size());
  }
  return pass;
}

}  // namespace lockstep
