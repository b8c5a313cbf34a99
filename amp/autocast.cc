#include "lockstep/amp/autocast.h"

#include <ATen/Context.h>
#include <ATen/autocast_mode.h>
#include <c10/core/GradMode.h>

#include <atomic>

namespace lockstep {
namespace {

std::atomic<bool> cache_taken{false};
thread_local bool has_cache = false;  // this thread has taken it
thread_local bool gradients = false;  // were enabled when the innermost guard began

}  // namespace

AutocastGuard::AutocastGuard(c10::DeviceType device, std::optional<at::ScalarType> dtype, bool cache)
    : device_(device),
      enabled_before_(at::autocast::is_autocast_enabled(device)),
      cache_before_(at::autocast::is_autocast_cache_enabled()),
      gradients_before_(gradients),
      dtype_before_(at::autocast::get_autocast_dtype(device)) {
  TORCH_CHECK(!dtype || *dtype == at::kBFloat16 || *dtype == at::kHalf,
              "AutocastGuard: the dtype must be bfloat16 or float16; std::nullopt turns autocast off");
  if (dtype && device == at::kCUDA && !at::hasCUDA()) {
    TORCH_WARN_ONCE("AutocastGuard: autocast for CUDA, but there is no CUDA here; on the CPU it is at::kCPU");
  }
  gradients = c10::GradMode::is_enabled();
  if (at::autocast::increment_nesting() == 1) {
    has_cache = !cache_taken.exchange(true);
    clears_cache_ = has_cache;
  } else {
    clears_cache_ = has_cache && (gradients != gradients_before_ || (dtype && *dtype != dtype_before_));
    if (clears_cache_) at::autocast::clear_cache();
  }
  at::autocast::set_autocast_cache_enabled(cache && has_cache && cache_before_);
  at::autocast::set_autocast_enabled(device_, dtype.has_value());
  if (dtype) at::autocast::set_autocast_dtype(device_, *dtype);
}

AutocastGuard::~AutocastGuard() {
  if (clears_cache_) at::autocast::clear_cache();
  if (at::autocast::decrement_nesting() == 0 && has_cache) {
    has_cache = false;
    cache_taken = false;
  }
  gradients = gradients_before_;
  at::autocast::set_autocast_cache_enabled(cache_before_);
  at::autocast::set_autocast_enabled(device_, enabled_before_);
  at::autocast::set_autocast_dtype(device_, dtype_before_);
}

}  // namespace lockstep
