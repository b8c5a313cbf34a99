#include "lockstep/amp/autocast.h"

#include <ATen/autocast_mode.h>

namespace lockstep {

AutocastGuard::AutocastGuard(c10::DeviceType device, std::optional<at::ScalarType> dtype)
    : device_(device),
      enabled_before_(at::autocast::is_autocast_enabled(device)),
      dtype_before_(at::autocast::get_autocast_dtype(device)) {
  TORCH_CHECK(!dtype || *dtype == at::kBFloat16 || *dtype == at::kHalf,
              "AutocastGuard: the dtype must be bfloat16 or float16");
  at::autocast::increment_nesting();
  at::autocast::set_autocast_enabled(device_, dtype.has_value());
  if (dtype) at::autocast::set_autocast_dtype(device_, *dtype);
}

AutocastGuard::~AutocastGuard() {
  if (at::autocast::decrement_nesting() == 0) at::autocast::clear_cache();
  at::autocast::set_autocast_enabled(device_, enabled_before_);
  at::autocast::set_autocast_dtype(device_, dtype_before_);
}

}  // namespace lockstep
