#pragma once

#include <absl/status/statusor.h>
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string_view>

namespace lockstep::internal {

// Pictures as uint8 (H, W, 3) from the bytes of a file; InvalidArgument for damage or more than `max_pixels`. The C
// libraries leave by longjmp: every setjmp is in a function without objects, so that nothing is left undone.

absl::StatusOr<at::Tensor> DecodePng(std::string_view bytes, int64_t max_pixels);
absl::StatusOr<at::Tensor> DecodeJpeg(std::string_view bytes, int64_t max_pixels);

/// An error for a picture that is too large; else OK.
absl::Status CheckPixels(int64_t width, int64_t height, int64_t max_pixels);

}  // namespace lockstep::internal
