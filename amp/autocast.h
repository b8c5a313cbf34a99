#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/DeviceType.h>

#include <optional>

namespace lockstep {

/// While it lives, operations on `device` of this thread run in `dtype` where LibTorch's lists say that this is safe.
/// Run forward and loss under it, not backward. Guards nest, in any mixture of dtypes and devices; what was in force
/// before is restored, also by an exception. It is for the thread that made it: another one has its own, or none.
///
/// Weights that are cast are kept until the outermost guard ends, for when they are used again: let it end before the
/// optimizer's step. LibTorch keeps them in one place for all threads, whatever the dtype and whether or not gradients
/// were wanted. Here one thread at a time may use that place (others cast anew), and an inner guard begins and ends
/// with an empty one where its dtype, or whether gradients are enabled, is not what the outer guard began with. So give
/// a forward without gradients, inside of one with, a guard of its own.
class AutocastGuard {
 public:
  /// `dtype`: at::kBFloat16 or at::kHalf; nothing turns autocast off inside. `cache`: whether cast weights are kept.
  /// Throws c10::Error for other dtypes, and for devices without autocast.
  AutocastGuard(c10::DeviceType device, std::optional<at::ScalarType> dtype, bool cache = true);
  ~AutocastGuard();
  AutocastGuard(const AutocastGuard&) = delete;
  AutocastGuard& operator=(const AutocastGuard&) = delete;

 private:
  const c10::DeviceType device_;
  const bool enabled_before_, cache_before_, gradients_before_;
  const at::ScalarType dtype_before_;
  bool clears_cache_ = false;
};

}  // namespace lockstep
