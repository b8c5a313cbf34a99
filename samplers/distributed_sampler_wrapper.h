#pragma once

#include <torch/data/samplers/base.h>

#include <cstddef>
#include <memory>
#include <optional>
#include <vector>

#include "lockstep/samplers/distributed_sampler.h"
#include "lockstep/samplers/epoch_part.h"
#include "lockstep/samplers/epoch_sampler.h"

namespace lockstep {

struct DistributedSamplerWrapperOptions {
  bool drop_last = false;  ///< Drop the tail that doesn't divide, instead of repeating indices. Needs `pad`.
  bool pad = true;         ///< False: every index of the inner sampler exactly once; ranks may then differ by one.
};

/// A rank's share of what any other sampler gives: of its pass, rank r takes the indices at r, r + replicas, …, padded
/// or cut by the rule of DistributedSampler.
///
/// All ranks have the same inner sampler with the same seed, or their shares overlap. Its `set_epoch` is called where
/// it has one. (LibTorch's own RandomSampler draws from the default generator of each rank, which is the same on all
/// only while nothing else draws from it.)
///
/// Copies share everything. Not thread-safe.
class DistributedSamplerWrapper : public torch::data::samplers::Sampler<> {
 public:
  /// `inner`: a sampler or a std::shared_ptr of one, with a pass that ends. Throws c10::Error as DistributedSampler's.
  DistributedSamplerWrapper(EpochSampler inner, size_t num_replicas, size_t rank,
                            DistributedSamplerWrapperOptions options = {});

  /// From the next reset() on.
  void set_epoch(size_t epoch) { set_epoch(epoch, {}); }
  /// For what is left of an epoch that other worlds have begun; see DistributedSampler.
  void set_epoch(size_t epoch, std::vector<EpochPart> done);

  /// Runs the inner sampler through its pass of the epoch, and starts the share. Throws c10::Error for a new size.
  void reset(std::optional<size_t> new_size = std::nullopt) override;
  std::optional<std::vector<size_t>> next(size_t batch_size) override;

  void save(torch::serialize::OutputArchive& archive) const override;
  void load(torch::serialize::InputArchive& archive) override;

  /// Indices in this rank's share of the current pass; before the first, what the inner sampler's size makes of it.
  size_t size() const { return share_.size(); }

 private:
  void DrawOrder();

  EpochSampler inner_;
  DistributedSampler share_;  // of positions in the order
  std::shared_ptr<std::vector<size_t>> order_ = std::make_shared<std::vector<size_t>>();
};

}  // namespace lockstep
