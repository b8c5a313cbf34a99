#include <absl/status/status.h>
#include <absl/strings/str_cat.h>
#include <ATen/Functions.h>
#include <png.h>

#include <csetjmp>
#include <cstring>
#include <string>
#include <vector>

#include "lockstep/base/status_macros.h"
#include "lockstep/data/internal/decode_image.h"

namespace lockstep::internal {
namespace {

class PngReader {
 public:
  explicit PngReader(std::string_view bytes) : left_(bytes) {
    png_ = png_create_read_struct(PNG_LIBPNG_VER_STRING, this, &Fail, [](png_structp, png_const_charp) {});
    if (png_ != nullptr) info_ = png_create_info_struct(png_);
  }
  ~PngReader() { png_destroy_read_struct(&png_, &info_, nullptr); }
  PngReader(const PngReader&) = delete;
  PngReader& operator=(const PngReader&) = delete;

  bool ReadHeader() {
    if (png_ == nullptr || info_ == nullptr || setjmp(png_jmpbuf(png_)) != 0) return false;
    png_set_read_fn(png_, this, &Give);
    png_read_info(png_, info_);
    return true;
  }
  bool Convert() {
    if (setjmp(png_jmpbuf(png_)) != 0) return false;
    const int type = png_get_color_type(png_, info_);
    if (IsDeepGrey()) {
      png_set_interlace_handling(png_);
      png_read_update_info(png_, info_);
      return png_get_rowbytes(png_, info_) == 2 * static_cast<size_t>(width());
    }
    if (type == PNG_COLOR_TYPE_PALETTE) png_set_palette_to_rgb(png_);
    if ((type & PNG_COLOR_MASK_COLOR) == 0) {
      png_set_expand_gray_1_2_4_to_8(png_);
      png_set_gray_to_rgb(png_);
    }
    png_set_strip_16(png_);
    png_set_strip_alpha(png_);
    png_set_interlace_handling(png_);
    png_read_update_info(png_, info_);
    return png_get_rowbytes(png_, info_) == 3 * static_cast<size_t>(width());
  }
  bool ReadRows(png_bytep* rows) {
    if (setjmp(png_jmpbuf(png_)) != 0) return false;
    png_read_image(png_, rows);
    return true;
  }

  /// Grey of 16 bits: two bytes a pixel, where all else has three.
  bool IsDeepGrey() const {
    return png_get_color_type(png_, info_) == PNG_COLOR_TYPE_GRAY && png_get_bit_depth(png_, info_) == 16;
  }
  int64_t width() const { return png_get_image_width(png_, info_); }
  int64_t height() const { return png_get_image_height(png_, info_); }
  absl::Status Error() const { return absl::InvalidArgumentError(absl::StrCat("damaged PNG: ", error_)); }

 private:
  static void Fail(png_structp png, png_const_charp what) {
    auto* self = static_cast<PngReader*>(png_get_error_ptr(png));
    std::strncpy(self->error_, what, sizeof self->error_ - 1);
    longjmp(png_jmpbuf(png), 1);
  }
  static void Give(png_structp png, png_bytep to, size_t size) {
    auto* self = static_cast<PngReader*>(png_get_io_ptr(png));
    if (size > self->left_.size()) png_error(png, "truncated");
    std::memcpy(to, self->left_.data(), size);
    self->left_.remove_prefix(size);
  }

  std::string_view left_;
  png_structp png_ = nullptr;
  png_infop info_ = nullptr;
  char error_[128] = "it can't be converted";
};

}  // namespace

absl::Status CheckPixels(int64_t width, int64_t height, int64_t max_pixels) {
  if (width <= 0 || height <= 0 || width > max_pixels / height) {
    return absl::InvalidArgumentError(
        absl::StrCat(width, " x ", height, " pixels, of which at most ", max_pixels, " are allowed"));
  }
  return absl::OkStatus();
}

absl::StatusOr<at::Tensor> DecodePng(std::string_view bytes, int64_t max_pixels) {
  PngReader reader(bytes);
  if (!reader.ReadHeader()) return reader.Error();
  LOCKSTEP_RETURN_IF_ERROR(CheckPixels(reader.width(), reader.height(), max_pixels));
  if (!reader.Convert()) return reader.Error();
  const bool deep = reader.IsDeepGrey();
  at::Tensor pixels = at::empty({reader.height(), reader.width(), deep ? 2 : 3}, at::kByte);
  std::vector<png_bytep> rows;
  for (int64_t y = 0; y < reader.height(); ++y) {
    rows.push_back(pixels.mutable_data_ptr<uint8_t>() + y * pixels.stride(0));
  }
  if (!reader.ReadRows(rows.data())) return reader.Error();
  if (!deep) return pixels;
  // Pillow cuts what is over 255 off, and takes the upper byte of all other pictures of 16 bits.
  const at::Tensor cut = pixels.select(2, 1).masked_fill(pixels.select(2, 0).ne(0), 255);
  return cut.unsqueeze(2).expand({-1, -1, 3});
}

}  // namespace lockstep::internal
