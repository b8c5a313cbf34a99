#include "lockstep/data/device_source.h"

#include <ATen/Functions.h>

namespace lockstep {

std::optional<TensorBatch> DeviceSource::Next() {
  auto batch = WrappedSource::Next();
  if (!batch || device_.is_cpu()) return batch;
  TensorBatch pinned = PinMemory(*std::move(batch));
  return TensorBatch{pinned.data.to(device_, /*non_blocking=*/true), pinned.target.to(device_, /*non_blocking=*/true)};
}

TensorBatch PinMemory(TensorBatch batch) {
  // A tensor of a device, or already pinned, stays as it is.
  if (batch.data.is_cpu()) batch.data = batch.data.pin_memory();
  if (batch.target.is_cpu()) batch.target = batch.target.pin_memory();
  return batch;
}

}  // namespace lockstep
