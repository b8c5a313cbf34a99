#pragma once

#include <torch/data/samplers/distributed.h>

#include <optional>
#include <vector>

namespace embedding {

/// A sampler of our own: every rank takes its stripe, which begins one sample further each epoch.
class StripedSampler : public torch::data::samplers::DistributedSampler<> {
 public:
  using torch::data::samplers::DistributedSampler<>::DistributedSampler;

  void reset(std::optional<size_t>) override { next_ = 0; }
  std::optional<std::vector<size_t>> next(size_t batch_size) override {
    const size_t share = size_ / num_replicas_;
    if (next_ >= share) return std::nullopt;
    std::vector<size_t> batch;
    for (; next_ < share && batch.size() < batch_size; ++next_) {
      batch.push_back((rank_ * share + next_ + epoch()) % size_);
    }
    return batch;
  }
  void save(torch::serialize::OutputArchive&) const override {}
  void load(torch::serialize::InputArchive&) override {}

 private:
  size_t next_ = 0;
};

}  // namespace embedding
