#pragma once

#include <c10/core/Device.h>

#include <optional>

#include "lockstep/data/batch_source.h"
#include "lockstep/data/tensor_batch.h"
#include "lockstep/data/wrapped_source.h"

namespace lockstep {

/// Another source's batches on a device. To CUDA they go through pinned memory without the host waiting: the copy is
/// ordered before what the current stream is given next. On the CPU they pass as they are.
class DeviceSource : public WrappedSource<TensorBatch> {
 public:
  /// `source` is not owned.
  DeviceSource(BatchSource<TensorBatch>& source, c10::Device device) : WrappedSource(source), device_(device) {}

  std::optional<TensorBatch> Next() override;

 private:
  const c10::Device device_;
};

/// A transform for the end of a loader's chain, so that its workers pin the memory: a batch in pinned memory.
TensorBatch PinMemory(TensorBatch batch);

}  // namespace lockstep
