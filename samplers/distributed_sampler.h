#pragma once

#include <torch/data/samplers/distributed.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "lockstep/samplers/epoch_part.h"

namespace lockstep {

struct DistributedSamplerOptions {
  bool shuffle = true;
  /// Of the order of samples; the same on all ranks, or their shares overlap.
  uint64_t seed = 0;
  /// Drop the tail that doesn't divide, instead of repeating samples. Needs `pad`.
  bool drop_last = false;
  /// False: every sample exactly once and none dropped, for evaluation; ranks may then differ by one sample.
  bool pad = true;
};

/// A rank's share of a data set, index for index as Python's `torch.utils.data.DistributedSampler` gives it for the
/// same size, replicas, rank, shuffle, seed, drop_last and epoch.
///
/// Copies share epoch and position: `make_data_loader` keeps a copy, and `set_epoch` on the original reaches it.
/// Each epoch: `set_epoch(e)`, then iterate. Without `set_epoch` each pass has the same order. Not thread-safe.
class DistributedSampler : public torch::data::samplers::DistributedSampler<> {
 public:
  /// Throws c10::Error when `rank` is not below `num_replicas`, or for drop_last without pad.
  DistributedSampler(size_t size, size_t num_replicas, size_t rank, DistributedSamplerOptions options = {});

  /// For this object and all its copies, from the next reset() on. The base's function of the same name, called
  /// through a reference to the base, reaches this object only.
  void set_epoch(size_t epoch);
  /// The same for what is left of an epoch that other worlds have begun, one after the other, each with what those
  /// before had left: the remaining samples, in the epoch's order, are shared out by the rule of a whole epoch.
  void set_epoch(size_t epoch, std::vector<EpochPart> done);
  size_t epoch() const;

  /// Starts a pass over the share in the order of the epoch; a new size replaces the data set's.
  void reset(std::optional<size_t> new_size = std::nullopt) override;
  /// Up to `batch_size` indices, or nothing at the end.
  std::optional<std::vector<size_t>> next(size_t batch_size) override;

  void save(torch::serialize::OutputArchive& archive) const override;
  void load(torch::serialize::InputArchive& archive) override;

  /// How many of the share's samples the current pass has handed out.
  size_t position() const;
  /// Number of samples in this rank's share of the current pass.
  size_t size() const;

 private:
  struct State {
    size_t epoch = 0;
    size_t position = 0;
    size_t data_size = 0;
    std::vector<EpochPart> done;  // of the epoch, before this pass
    size_t available = 0;         // samples that the pass shares out
    std::vector<size_t> indices;
  };

  std::vector<size_t> Order() const;
  void Populate();

  DistributedSamplerOptions options_;
  size_t base_epoch_seen_ = 0;
  std::shared_ptr<State> state_;
};

}  // namespace lockstep
