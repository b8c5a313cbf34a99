#include <cstddef>
#include <cstdio>

#include <absl/status/status.h>
#include <absl/strings/str_cat.h>
#include <ATen/Functions.h>
#include <jpeglib.h>
#include <jerror.h>

#include <csetjmp>
#include <vector>

#include "lockstep/base/status_macros.h"
#include "lockstep/data/internal/decode_image.h"

namespace lockstep::internal {
namespace {

class JpegReader {
 public:
  JpegReader() {
    info_.err = jpeg_std_error(&handlers_);
    info_.client_data = this;
    handlers_.error_exit = [](j_common_ptr info) {
      info->err->format_message(info, Of(info)->error_);
      longjmp(Of(info)->jump_, 1);
    };
    handlers_.emit_message = [](j_common_ptr info, int level) {
      if (level < 0 && info->err->msg_code == JWRN_JPEG_EOF) Of(info)->truncated_ = true;
    };
    // A small file may have any number of passes over a large picture.
    progress_.progress_monitor = [](j_common_ptr info) {
      constexpr int kMaxScans = 1000;
      if (reinterpret_cast<j_decompress_ptr>(info)->input_scan_number > kMaxScans) ERREXIT(info, JERR_BAD_PROGRESSION);
    };
  }
  ~JpegReader() { jpeg_destroy_decompress(&info_); }
  JpegReader(const JpegReader&) = delete;
  JpegReader& operator=(const JpegReader&) = delete;

  bool ReadHeader(const unsigned char* bytes, size_t size) {
    if (setjmp(jump_) != 0) return false;
    jpeg_create_decompress(&info_);
    info_.client_data = this;
    info_.progress = &progress_;
    jpeg_mem_src(&info_, bytes, size);
    jpeg_read_header(&info_, TRUE);
    const bool inks = info_.jpeg_color_space == JCS_CMYK || info_.jpeg_color_space == JCS_YCCK;
    info_.out_color_space = inks ? JCS_CMYK : JCS_RGB;
    return true;
  }
  bool Start() {
    if (setjmp(jump_) != 0) return false;
    return jpeg_start_decompress(&info_) != FALSE;
  }
  /// The next row, of channels() bytes a pixel.
  bool ReadRow(unsigned char* row) {
    if (setjmp(jump_) != 0) return false;
    return jpeg_read_scanlines(&info_, &row, 1) == 1;
  }

  int64_t width() const { return info_.image_width; }
  int64_t height() const { return info_.image_height; }
  int channels() const { return info_.output_components; }
  bool truncated() const { return truncated_; }
  absl::Status Error() const { return absl::InvalidArgumentError(absl::StrCat("damaged JPEG: ", error_)); }

 private:
  static JpegReader* Of(j_common_ptr info) { return static_cast<JpegReader*>(info->client_data); }

  jpeg_decompress_struct info_{};
  jpeg_error_mgr handlers_{};
  jpeg_progress_mgr progress_{};
  jmp_buf jump_;
  bool truncated_ = false;
  char error_[JMSG_LENGTH_MAX] = "it can't be converted";
};

/// a · b ÷ 255, rounded, as Pillow does it.
int Scaled(int a, int b) {
  const int product = a * b + 128;
  return ((product >> 8) + product) >> 8;
}

/// Inks are stored as Adobe does, 255 for none of it.
void InksToRgb(const unsigned char* inks, unsigned char* rgb, int64_t width) {
  for (int64_t x = 0; x < width; ++x, inks += 4) {
    for (int c = 0; c < 3; ++c) *rgb++ = static_cast<unsigned char>(inks[3] - Scaled(255 - inks[c], inks[3]));
  }
}

}  // namespace

absl::StatusOr<at::Tensor> DecodeJpeg(std::string_view bytes, int64_t max_pixels) {
  JpegReader reader;
  if (!reader.ReadHeader(reinterpret_cast<const unsigned char*>(bytes.data()), bytes.size())) return reader.Error();
  LOCKSTEP_RETURN_IF_ERROR(CheckPixels(reader.width(), reader.height(), max_pixels));
  if (!reader.Start()) return reader.Error();
  if (reader.channels() != 3 && reader.channels() != 4) return reader.Error();
  at::Tensor pixels = at::empty({reader.height(), reader.width(), 3}, at::kByte);
  std::vector<unsigned char> inks(reader.channels() == 4 ? 4 * reader.width() : 0);
  for (int64_t y = 0; y < reader.height(); ++y) {
    unsigned char* row = pixels.mutable_data_ptr<uint8_t>() + y * 3 * reader.width();
    if (!reader.ReadRow(inks.empty() ? row : inks.data())) return reader.Error();
    if (!inks.empty()) InksToRgb(inks.data(), row, reader.width());
  }
  if (reader.truncated()) return absl::InvalidArgumentError("truncated JPEG");
  return pixels;
}

}  // namespace lockstep::internal
