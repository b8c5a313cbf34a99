#include "lockstep/metrics/device_memory.h"

#include <ATen/Context.h>
#include <c10/core/CachingDeviceAllocator.h>

namespace lockstep {
namespace {

/// Null for the CPU. The interface is c10's own, so that nothing here needs CUDA to be built.
c10::DeviceAllocator* AllocatorOf(c10::Device device) {
  if (device.is_cpu()) return nullptr;
  at::globalContext().lazyInitDevice(device.type());  // that is when it is there
  return dynamic_cast<c10::DeviceAllocator*>(c10::GetAllocator(device.type()));
}

c10::DeviceIndex IndexOf(c10::Device device) { return device.has_index() ? device.index() : c10::DeviceIndex{0}; }

}  // namespace

std::optional<DeviceMemory> PeakDeviceMemory(c10::Device device) {
  c10::DeviceAllocator* const allocator = AllocatorOf(device);
  if (allocator == nullptr) return std::nullopt;
  const auto statistics = allocator->getDeviceStats(IndexOf(device));
  constexpr auto kAll = static_cast<size_t>(c10::CachingAllocator::StatType::AGGREGATE);
  return DeviceMemory{statistics.allocated_bytes[kAll].peak, statistics.reserved_bytes[kAll].peak};
}

void ResetPeakDeviceMemory(c10::Device device) {
  if (c10::DeviceAllocator* const allocator = AllocatorOf(device)) allocator->resetPeakStats(IndexOf(device));
}

}  // namespace lockstep
