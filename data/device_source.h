#pragma once

#include <c10/core/Device.h>

#include <optional>
#include <vector>

#include "lockstep/data/batch_source.h"
#include "lockstep/data/tensor_batch.h"

namespace lockstep {

/// Another source's batches on a device. To CUDA they go through pinned memory without the host waiting: the copy is
/// ordered before what the current stream is given next. On the CPU they pass as they are.
class DeviceSource : public BatchSource<TensorBatch> {
 public:
  /// `source` is not owned.
  DeviceSource(BatchSource<TensorBatch>& source, c10::Device device) : source_(source), device_(device) {}

  void StartEpoch(size_t epoch) override { source_.StartEpoch(epoch); }
  std::optional<TensorBatch> Next() override;
  size_t num_batches() const override { return source_.num_batches(); }
  bool Skip(size_t batches) override { return source_.Skip(batches); }
  std::optional<size_t> SamplesIn(size_t batches) const override { return source_.SamplesIn(batches); }
  bool StartRest(size_t epoch, const std::vector<EpochPart>& done) override { return source_.StartRest(epoch, done); }

 private:
  BatchSource<TensorBatch>& source_;
  const c10::Device device_;
};

/// A transform for the end of a loader's chain, so that its workers pin the memory: a batch in pinned memory.
TensorBatch PinMemory(TensorBatch batch);

}  // namespace lockstep
