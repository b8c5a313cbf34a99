#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/Exception.h>

namespace lockstep::transforms {

/// Throws unless `data` is (N, C, H, W).
inline void CheckPictures(const at::Tensor& data, const char* transform) {
  TORCH_CHECK(data.dim() == 4, transform, ": expected pictures (N, C, H, W), got ", data.sizes());
}

/// And unless they are floats.
inline void CheckFloatPictures(const at::Tensor& data, const char* transform) {
  CheckPictures(data, transform);
  TORCH_CHECK(data.is_floating_point(), transform, ": expected floats, got ", data.scalar_type(),
              "; put ToFloat before it");
}

}  // namespace lockstep::transforms
