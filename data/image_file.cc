#include "lockstep/data/image_file.h"

#include <absl/status/status.h>
#include <absl/strings/str_cat.h>
#include <sys/stat.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <exception>
#include <memory>
#include <string_view>

#include "lockstep/base/error_text.h"
#include "lockstep/base/prefixed.h"
#include "lockstep/base/status_macros.h"
#include "lockstep/data/internal/decode_image.h"

namespace lockstep {
namespace {

absl::StatusOr<std::string> ReadFile(const std::string& path) {
  struct stat info {};  // before it is opened, which waits for a writer if it is a pipe
  if (stat(path.c_str(), &info) != 0) {
    const bool missing = errno == ENOENT || errno == ENOTDIR;
    return missing ? absl::NotFoundError("no such file") : absl::UnavailableError(std::strerror(errno));
  }
  if (!S_ISREG(info.st_mode)) return absl::InvalidArgumentError("not a regular file");
  const std::unique_ptr<FILE, int (*)(FILE*)> file(std::fopen(path.c_str(), "rb"), &std::fclose);
  if (file == nullptr) return absl::UnavailableError(std::strerror(errno));
  std::string bytes(static_cast<size_t>(info.st_size), '\0');
  bytes.resize(std::fread(bytes.data(), 1, bytes.size(), file.get()));
  if (std::ferror(file.get()) != 0) return absl::UnavailableError("cannot be read");
  return bytes;
}

absl::StatusOr<at::Tensor> Read(const std::string& path, int64_t max_pixels) {
  LOCKSTEP_ASSIGN_OR_RETURN(const std::string bytes, ReadFile(path));
  const std::string_view begin(bytes.data(), std::min<size_t>(bytes.size(), 8));
  if (begin == "\x89PNG\r\n\x1a\n") return internal::DecodePng(bytes, max_pixels);
  if (begin.substr(0, 3) == "\xff\xd8\xff") return internal::DecodeJpeg(bytes, max_pixels);
  return absl::InvalidArgumentError("neither PNG nor JPEG");
}

}  // namespace

absl::StatusOr<at::Tensor> ReadImage(const std::string& path, const ReadImageOptions& options) {
  absl::StatusOr<at::Tensor> pixels;
  try {
    pixels = Read(path, options.max_pixels);
    if (pixels.ok()) return pixels->permute({2, 0, 1}).contiguous();
  } catch (const std::exception& e) {  // no memory
    pixels = absl::ResourceExhaustedError(FirstLine(e.what()));
  }
  return Prefixed(absl::StrCat("image ", path, ": "), pixels.status());
}

}  // namespace lockstep
