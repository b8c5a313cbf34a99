#pragma once

#include <ATen/core/Tensor.h>

#include <condition_variable>
#include <deque>
#include <exception>
#include <functional>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

#include "lockstep/data/batch_source.h"
#include "lockstep/samplers/epoch_part.h"
#include "lockstep/samplers/epoch_sampler.h"

namespace lockstep {

/// Inputs and targets of the samples of one batch, in the sampler's order.
struct TensorBatch {
  at::Tensor data;
  at::Tensor target;
};

struct TensorLoaderOptions {
  size_t batch_size = 1;
  /// Leave out a last batch that is shorter.
  bool drop_last = false;
  /// Batches made ahead by a thread; 0: made when they are asked for, in the caller's thread.
  size_t prefetch = 2;
  /// Samples in a pass, for num_batches(); 0: what the sampler says, if it does.
  size_t samples = 0;
};

/// Batches cut straight out of tensors that hold the whole data set: one index_select a batch, no collation of
/// samples. The order is the sampler's, whatever `prefetch` is. An exception in the thread is thrown by Next(). For one
/// thread at a time.
class TensorLoader : public BatchSource<TensorBatch> {
 public:
  /// `data` and `target` have the samples in their first dimension. `transform` (may be null) is applied to each
  /// batch, in the prefetching thread.
  TensorLoader(at::Tensor data, at::Tensor target, EpochSampler sampler, TensorLoaderOptions options,
               std::function<TensorBatch(TensorBatch)> transform = nullptr);
  ~TensorLoader() override;

  void StartEpoch(size_t epoch) override;
  std::optional<TensorBatch> Next() override;
  size_t num_batches() const override;
  bool Skip(size_t batches) override;
  std::optional<size_t> SamplesIn(size_t batches) const override { return batches * options_.batch_size; }
  bool StartRest(size_t epoch, const std::vector<EpochPart>& done) override;

 private:
  void Start();
  std::optional<std::vector<size_t>> NextIndices();
  std::optional<TensorBatch> Make();
  void Run();
  void Stop();

  const at::Tensor data_;
  const at::Tensor target_;
  EpochSampler sampler_;
  const TensorLoaderOptions options_;
  const std::function<TensorBatch(TensorBatch)> transform_;

  std::thread thread_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<TensorBatch> ready_;
  std::exception_ptr error_;
  std::optional<size_t> rest_;  // samples of a pass over the rest of an epoch
  bool started_ = false, ended_ = true;
  bool stop_ = false;
};

}  // namespace lockstep
