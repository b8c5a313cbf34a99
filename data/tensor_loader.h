#pragma once

#include <ATen/core/Tensor.h>

#include <functional>

#include "lockstep/data/batch_keys.h"
#include "lockstep/data/batch_loader.h"
#include "lockstep/data/tensor_batch.h"
#include "lockstep/samplers/epoch_sampler.h"

namespace lockstep {

/// Batches cut straight out of tensors that hold the whole data set: one index_select a batch, no collation of
/// samples.
class TensorLoader : public BatchLoader<TensorBatch> {
 public:
  /// `data` and `target` have the samples in their first dimension. `transform` (may be null) is applied to each
  /// batch, in the worker.
  TensorLoader(at::Tensor data, at::Tensor target, EpochSampler sampler, const LoaderOptions& options,
               std::function<TensorBatch(TensorBatch, const BatchKeys&)> transform = nullptr);
};

}  // namespace lockstep
