#pragma once

#include <absl/status/statusor.h>
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>

namespace lockstep {

struct ReadImageOptions {
  /// Width times height; more is an error before memory is taken. This is what Pillow refuses.
  int64_t max_pixels = 178'956'970;
};

/// Reads a PNG or JPEG file, told by its first bytes, as Pillow's `Image.open(path).convert("RGB")` does: grey,
/// palettes, 16 bits, CMYK and YCCK are converted, an alpha channel is left out, colour profiles and EXIF's orientation
/// are not applied. As there, grey of 16 bits is cut off at 255, and of other pictures of 16 bits the upper byte
/// counts. Gives uint8, (3, H, W). Safe to call from many threads.
///
/// Errors name the file: NotFound; Unavailable with what the system says; InvalidArgument for what is neither PNG nor
/// JPEG, damaged, truncated or too large. What libjpeg can mend it mends, as it does for Pillow.
absl::StatusOr<at::Tensor> ReadImage(const std::string& path, const ReadImageOptions& options = {});

}  // namespace lockstep
