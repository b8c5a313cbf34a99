#include "lockstep/samplers/distributed_sampler.h"

#include <ATen/Functions.h>
#include <torch/serialize/archive.h>

#include <algorithm>
#include <numeric>
#include <utility>

#include "lockstep/samplers/internal/permutation.h"

namespace lockstep {

DistributedSampler::DistributedSampler(size_t size, size_t num_replicas, size_t rank, DistributedSamplerOptions options)
    : torch::data::samplers::DistributedSampler<>(size, num_replicas, rank, options.pad && !options.drop_last),
      options_(options),
      state_(std::make_shared<State>()) {
  TORCH_CHECK(num_replicas > 0 && rank < num_replicas, "DistributedSampler: rank ", rank, " is not below num_replicas ",
              num_replicas);
  TORCH_CHECK(options.pad || !options.drop_last,
              "DistributedSampler: drop_last drops samples, pad = false keeps each; "
              "choose one");
  state_->data_size = size;
  Populate();
}

void DistributedSampler::set_epoch(size_t epoch) { set_epoch(epoch, {}); }

void DistributedSampler::set_epoch(size_t epoch, std::vector<EpochPart> done) {
  state_->epoch = epoch;
  state_->done = std::move(done);
}

size_t DistributedSampler::epoch() const { return state_->epoch; }

size_t DistributedSampler::position() const { return state_->position; }

size_t DistributedSampler::size() const {
  const size_t n = state_->available;
  if (!options_.pad) return n / num_replicas_ + (rank_ < n % num_replicas_ ? 1 : 0);
  if (options_.drop_last) return n / num_replicas_;
  return (n + num_replicas_ - 1) / num_replicas_;
}

void DistributedSampler::reset(std::optional<size_t> new_size) {
  if (new_size) state_->data_size = *new_size;
  // Somebody who holds this object as its base may have called the base's set_epoch.
  if (epoch_ != base_epoch_seen_) set_epoch(base_epoch_seen_ = epoch_);
  Populate();
}

std::optional<std::vector<size_t>> DistributedSampler::next(size_t batch_size) {
  const auto& all = state_->indices;
  const size_t begin = state_->position;
  if (begin >= all.size()) return std::nullopt;
  const size_t end = std::min(all.size(), begin + batch_size);
  state_->position = end;
  return std::vector<size_t>(all.begin() + begin, all.begin() + end);
}

/// Of the samples that the pass shares out.
std::vector<size_t> DistributedSampler::Order() const {
  std::vector<size_t> order;
  if (options_.shuffle) {
    order = Permutation(state_->data_size, options_.seed + state_->epoch);
  } else {
    order.resize(state_->data_size);
    std::iota(order.begin(), order.end(), size_t{0});
  }
  for (const auto& [samples] : state_->done) {
    std::vector<bool> taken(order.size());
    for (size_t rank = 0; rank < samples.size() && !order.empty(); ++rank) {
      const size_t share = (order.size() + samples.size() - 1) / samples.size();
      for (size_t i = 0; i < std::min(samples[rank], share); ++i)
        taken[(rank + i * samples.size()) % order.size()] = true;
    }
    size_t left = 0;
    for (size_t i = 0; i < order.size(); ++i) {
      if (!taken[i]) order[left++] = order[i];
    }
    order.resize(left);
  }
  return order;
}

void DistributedSampler::Populate() {
  const std::vector<size_t> order = Order();
  const size_t n = state_->available = order.size();
  // Position p of the padded order is sample p mod n; rank r takes r, r + replicas, r + 2 * replicas, ...
  auto& mine = state_->indices;
  mine.resize(n == 0 ? 0 : size());
  for (size_t i = 0; i < mine.size(); ++i) mine[i] = order[(rank_ + i * num_replicas_) % n];
  state_->position = 0;
}

void DistributedSampler::save(torch::serialize::OutputArchive& archive) const {
  archive.write("epoch", at::scalar_tensor(static_cast<int64_t>(state_->epoch), at::kLong), /*is_buffer=*/true);
  archive.write("position", at::scalar_tensor(static_cast<int64_t>(state_->position), at::kLong), true);
}

void DistributedSampler::load(torch::serialize::InputArchive& archive) {
  at::Tensor epoch, position;
  archive.read("epoch", epoch, /*is_buffer=*/true);
  archive.read("position", position, true);
  state_->epoch = static_cast<size_t>(epoch.item<int64_t>());
  Populate();
  state_->position = std::min(static_cast<size_t>(position.item<int64_t>()), state_->indices.size());
}

}  // namespace lockstep
