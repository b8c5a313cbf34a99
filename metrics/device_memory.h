#pragma once

#include <c10/core/Device.h>

#include <cstdint>
#include <optional>

namespace lockstep {

/// Bytes on a device, by LibTorch's caching allocator: the most that tensors had, and the most that it had taken from
/// the device for them.
struct DeviceMemory {
  int64_t peak_allocated = 0;
  int64_t peak_reserved = 0;
};

/// Since ResetPeakDeviceMemory or the start. Nothing for the CPU, and for devices whose allocator doesn't count.
std::optional<DeviceMemory> PeakDeviceMemory(c10::Device device);

/// Begins to measure anew, from what tensors have now.
void ResetPeakDeviceMemory(c10::Device device);

}  // namespace lockstep
