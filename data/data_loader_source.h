#pragma once

#include <torch/data/dataloader/base.h>

#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "lockstep/data/batch_source.h"
#include "lockstep/samplers/epoch_part.h"

namespace lockstep {

/// Batches from a loader of LibTorch's (`torch::data::make_data_loader`). The loader keeps a copy of the sampler; give
/// the original here, whose copies must share their epoch (lockstep::DistributedSampler's do), and each epoch begins
/// with its `set_epoch`, called by its own type.
template <typename Loader, typename Sampler>
class DataLoaderSource : public BatchSource<typename Loader::element_type::BatchType> {
 public:
  using Batch = typename Loader::element_type::BatchType;

  /// `loader` is what make_data_loader returned, a std::unique_ptr.
  DataLoaderSource(Loader loader, Sampler sampler) : loader_(std::move(loader)), sampler_(std::move(sampler)) {}

  void StartEpoch(size_t epoch) override {
    Finish();
    sampler_.set_epoch(epoch);
    Start();
  }

  bool StartRest(size_t epoch, const std::vector<EpochPart>& done) override {
    if constexpr (StartsRest<Sampler>::value) {
      Finish();
      sampler_.set_epoch(epoch, done);
      Start();
    }
    return StartsRest<Sampler>::value;
  }

  std::optional<size_t> SamplesIn(size_t batches) const override { return batches * loader_->options().batch_size; }

  std::optional<Batch> Next() override {
    TORCH_CHECK(started_, "DataLoaderSource: Next before the first StartEpoch");
    if (!position_) return std::nullopt;
    if (!first_) ++*position_;
    first_ = false;
    if (*position_ == loader_->end()) {
      position_.reset();
      return std::nullopt;
    }
    return std::move(**position_);
  }

 private:
  /// LibTorch's loader can't begin again in the middle of a pass.
  void Finish() {
    while (position_ && Next()) {
    }
  }

  void Start() {
    started_ = true;
    position_.emplace(loader_->begin());
    first_ = true;
  }

  Loader loader_;
  Sampler sampler_;
  std::optional<torch::data::Iterator<Batch>> position_;
  bool started_ = false, first_ = true;
};

}  // namespace lockstep
