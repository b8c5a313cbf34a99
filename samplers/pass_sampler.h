#pragma once

#include <torch/data/samplers/base.h>

#include <cstddef>
#include <memory>
#include <optional>
#include <vector>

namespace lockstep {

/// A sampler whose pass over the data is made as a whole, and is a function of the epoch: in a subclass, MakePass is
/// all that is to be said. Each epoch: `set_epoch(e)`, then iterate. Without `set_epoch` each pass is the same.
///
/// Copies share epoch and position: `make_data_loader` keeps a copy, and `set_epoch` on the original reaches it. To
/// spread a pass over ranks there is DistributedSamplerWrapper. Not thread-safe.
class PassSampler : public torch::data::samplers::Sampler<> {
 public:
  /// From the next reset() on.
  void set_epoch(size_t epoch) { state_->epoch = epoch; }
  size_t epoch() const { return state_->epoch; }

  /// Starts a pass. Throws c10::Error for a new size: what there is to sample was said when the sampler was made.
  void reset(std::optional<size_t> new_size = std::nullopt) override;
  /// Up to `batch_size` indices, or nothing at the end. Where the pass has batches of its own: the next of them.
  std::optional<std::vector<size_t>> next(size_t batch_size) override;

  void save(torch::serialize::OutputArchive& archive) const override;
  void load(torch::serialize::InputArchive& archive) override;

  /// How many indices the current pass has handed out.
  size_t position() const { return state_->position; }
  /// Indices in the current pass (before the first: in the one of the epoch that is set).
  size_t size() const { return Current().indices.size(); }

 protected:
  struct Pass {
    std::vector<size_t> indices;
    /// Where the pass has batches of its own: for each, how many indices come before its end.
    std::vector<size_t> batch_ends;
  };

  /// The same for the same epoch; in a distributed run also on all ranks, or their shares overlap.
  virtual Pass MakePass(size_t epoch) const = 0;

  const Pass& Current() const;

 private:
  struct State {
    size_t epoch = 0;
    size_t position = 0;
    std::optional<size_t> made_of;  // the epoch that `pass` is of
    Pass pass;
  };

  const std::shared_ptr<State> state_ = std::make_shared<State>();
};

}  // namespace lockstep
