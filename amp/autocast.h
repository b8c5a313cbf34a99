#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/DeviceType.h>

#include <optional>

namespace lockstep {

/// While it lives, operations on `device` of this thread run in `dtype` where LibTorch's lists say that this is safe.
/// Guards nest; the settings before are restored, also by an exception, and the cache of cast weights is cleared when
/// the outermost one ends. Run forward and loss under it, not backward.
class AutocastGuard {
 public:
  /// `dtype`: at::kBFloat16 or at::kHalf; nothing turns autocast off inside.
  AutocastGuard(c10::DeviceType device, std::optional<at::ScalarType> dtype);
  ~AutocastGuard();
  AutocastGuard(const AutocastGuard&) = delete;
  AutocastGuard& operator=(const AutocastGuard&) = delete;

 private:
  const c10::DeviceType device_;
  const bool enabled_before_;
  const at::ScalarType dtype_before_;
};

}  // namespace lockstep
