#include "lockstep/data/tensor_loader.h"

#include <ATen/Functions.h>

#include <cstring>
#include <utility>

namespace lockstep {

TensorLoader::TensorLoader(at::Tensor data, at::Tensor target, EpochSampler sampler, const LoaderOptions& options,
                           std::function<TensorBatch(TensorBatch, const BatchKeys&)> transform)
    : BatchLoader(std::move(sampler), options, [data, target, transform = std::move(transform)](const BatchKeys& keys) {
        for (const size_t sample : keys.samples) {
          TORCH_CHECK_INDEX(sample < static_cast<size_t>(data.size(0)), "sample ", sample, ": the data set has ",
                            data.size(0), "; the sampler was made for another number");
        }
        at::Tensor index = at::empty({static_cast<int64_t>(keys.samples.size())}, at::kLong);
        std::memcpy(index.data_ptr(), keys.samples.data(), keys.samples.size() * sizeof(int64_t));
        TensorBatch batch{data.index_select(0, index), target.index_select(0, index)};
        return transform ? transform(std::move(batch), keys) : batch;
      }) {
  TORCH_CHECK(data.dim() > 0 && target.dim() > 0 && data.size(0) == target.size(0),
              "TensorLoader: data and target must have the same number of samples in their first dimension");
}

}  // namespace lockstep
