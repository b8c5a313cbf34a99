#pragma once

#include <c10/util/Exception.h>
#include <torch/data/datasets/base.h>

#include <exception>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "lockstep/data/batch_loader.h"
#include "lockstep/data/collate.h"
#include "lockstep/data/tensor_batch.h"
#include "lockstep/samplers/distributed_sampler.h"
#include "lockstep/samplers/epoch_sampler.h"

namespace lockstep {

/// Batches of the samples of a `torch::data::datasets::Dataset`, each read by its `get(index)`, which several workers
/// call at once, and put together by `collate`. What get() throws reaches the trainer with the sample's index.
template <typename Dataset, typename Batch = TensorBatch>
class DatasetLoader : public BatchLoader<Batch> {
 public:
  using Sample = decltype(std::declval<Dataset&>().get(size_t{0}));
  using Collate = std::function<Batch(std::vector<Sample>)>;
  using Transform = std::function<Batch(Batch, const BatchKeys&)>;

  /// In the order of `sampler`. `transform` (may be null) is applied to each batch, in the worker.
  DatasetLoader(std::shared_ptr<Dataset> dataset, EpochSampler sampler, const LoaderOptions& options,
                Collate collate = StackSamples, Transform transform = nullptr)
      : BatchLoader<Batch>(std::move(sampler), options,
                           [dataset = std::move(dataset), collate = std::move(collate),
                            transform = std::move(transform)](const BatchKeys& keys) {
                             std::vector<Sample> samples;
                             samples.reserve(keys.samples.size());
                             for (const size_t index : keys.samples) samples.push_back(Get(*dataset, index));
                             Batch batch = collate(std::move(samples));
                             return transform ? transform(std::move(batch), keys) : batch;
                           }) {}

  /// In the data set's order, or with `shuffle` in a new order each epoch, drawn from the options' seed. A sampler of
  /// one's own says itself whether it shuffles.
  DatasetLoader(std::shared_ptr<Dataset> dataset, bool shuffle, const LoaderOptions& options,
                Collate collate = StackSamples, Transform transform = nullptr)
      : DatasetLoader(dataset, Whole(*dataset, shuffle, options), options, std::move(collate), std::move(transform)) {}

 private:
  static Sample Get(Dataset& dataset, size_t index) {
    const auto size = dataset.size();
    TORCH_CHECK_INDEX(!size || index < *size, "sample ", index, ": the data set has ", size.value_or(0),
                      "; the sampler was made for another number");
    try {
      return dataset.get(index);
    } catch (const std::exception& e) {
      TORCH_CHECK(false, "sample ", index, ": ", e.what());
    } catch (...) {
      TORCH_CHECK(false, "sample ", index, ": something was thrown that is no std::exception");
    }
  }

  static EpochSampler Whole(const Dataset& dataset, bool shuffle, const LoaderOptions& options) {
    TORCH_CHECK(dataset.size().has_value(), "DatasetLoader: the data set doesn't know its size; give a sampler");
    DistributedSamplerOptions order;
    order.shuffle = shuffle;
    order.seed = options.seed;
    return DistributedSampler(*dataset.size(), 1, 0, order);
  }
};

}  // namespace lockstep
