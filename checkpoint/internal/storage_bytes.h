#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include <cstdint>
#include <memory>

namespace lockstep::internal {

/// A one-dimensional tensor of bytes over memory that `owner` keeps alive, on the device that is wanted. On the CPU it
/// is that memory itself, where it is aligned for every dtype.
at::Tensor StorageBytes(char* data, int64_t size, std::shared_ptr<void> owner, at::Device device);

}  // namespace lockstep::internal
