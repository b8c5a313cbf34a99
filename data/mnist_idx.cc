#include <absl/status/status.h>
#include <absl/strings/str_cat.h>
#include <ATen/Functions.h>
#include <sys/stat.h>
#include <zlib.h>

#include <algorithm>
#include <memory>
#include <utility>
#include <vector>

#include "lockstep/base/status_macros.h"
#include "lockstep/data/mnist.h"

namespace lockstep {
namespace {

bool Exists(const std::string& path) {
  struct stat info {};
  return stat(path.c_str(), &info) == 0;
}

bool IsRegular(const std::string& path) {
  struct stat info {};
  return stat(path.c_str(), &info) == 0 && S_ISREG(info.st_mode);
}

/// Reads an IDX file of unsigned bytes with `dims` dimensions; gzread reads plain files too.
absl::StatusOr<at::Tensor> ReadIdx(const std::string& path, int dims) {
  const auto error = [&](const std::string& what) {
    return absl::InvalidArgumentError(absl::StrCat("IDX file ", path, ": ", what));
  };
  if (!IsRegular(path)) return error("not a regular file");
  std::unique_ptr<gzFile_s, int (*)(gzFile)> file(gzopen(path.c_str(), "rb"), &gzclose);
  if (file == nullptr) return absl::NotFoundError(absl::StrCat("IDX file ", path, ": cannot be opened"));
  gzbuffer(file.get(), 1 << 18);
  const auto read = [&](void* into, size_t n) {
    return gzread(file.get(), into, static_cast<unsigned>(n)) == static_cast<int>(n);
  };
  /// Why less came than was wanted.
  const auto short_read = [&](const std::string& otherwise) {
    int code = Z_OK;
    const std::string what = gzerror(file.get(), &code);
    return error(code == Z_DATA_ERROR ? absl::StrCat("damaged: ", what) : otherwise);
  };
  unsigned char magic[4];
  if (!read(magic, 4)) return short_read("truncated: shorter than its header");
  if (magic[0] != 0 || magic[1] != 0 || magic[2] != 8 || magic[3] != dims) {
    return error(absl::StrCat("wrong magic number 0x",
                              absl::Hex(magic[0] << 24 | magic[1] << 16 | magic[2] << 8 | magic[3], absl::kZeroPad8),
                              ", want 0x", absl::Hex(8 << 8 | dims, absl::kZeroPad8)));
  }
  std::vector<int64_t> shape;
  int64_t total = 1;
  for (int d = 0; d < dims; ++d) {
    unsigned char size[4];
    if (!read(size, 4)) return short_read("truncated: shorter than its header");
    shape.push_back(int64_t{size[0]} << 24 | size[1] << 16 | size[2] << 8 | size[3]);
    if (d > 0 && shape[d] != 28) return error(absl::StrCat("pictures of side ", shape[d], ", want 28"));
    total *= shape[d];
  }
  // Read by chunks before all memory is taken: the header of a broken file may promise anything.
  std::vector<unsigned char> bytes;
  constexpr int64_t kChunk = 64 << 20;
  while (static_cast<int64_t>(bytes.size()) < total) {
    const int64_t n = std::min<int64_t>(kChunk, total - static_cast<int64_t>(bytes.size()));
    const size_t begin = bytes.size();
    bytes.resize(begin + n);
    const int got = gzread(file.get(), bytes.data() + begin, static_cast<unsigned>(n));
    if (got != n) {
      return short_read(absl::StrCat("truncated: ", begin + std::max(got, 0), " bytes of data, want ", total));
    }
  }
  char extra = 0;
  const int more = gzread(file.get(), &extra, 1);
  if (more < 0) return short_read("damaged");  // the checksum comes last
  if (more > 0) return error(absl::StrCat("longer than the ", total, " bytes of its header"));
  if (gzclose(file.release()) != Z_OK) return error("truncated: the compressed file has no end");
  return at::from_blob(bytes.data(), shape, at::kByte).clone();
}

/// `path` or `path`.gz, whichever is there.
std::string PlainOrGz(const std::string& path) {
  return Exists(path) ? path : Exists(path + ".gz") ? path + ".gz" : "";
}

}  // namespace

absl::StatusOr<MnistData> LoadMnistIdx(const std::string& folder) {
  std::vector<at::Tensor> images, labels;
  for (const char* part : {"train", "t10k"}) {
    const std::string image_path = PlainOrGz(absl::StrCat(folder, "/", part, "-images-idx3-ubyte"));
    const std::string label_path = PlainOrGz(absl::StrCat(folder, "/", part, "-labels-idx1-ubyte"));
    if (image_path.empty() && label_path.empty()) continue;
    if (image_path.empty() || label_path.empty()) {
      return absl::NotFoundError(absl::StrCat("MNIST folder ", folder, ": ", part, "-",
                                              image_path.empty() ? "images-idx3" : "labels-idx1",
                                              "-ubyte is missing (plain or with .gz)"));
    }
    LOCKSTEP_ASSIGN_OR_RETURN(at::Tensor image, ReadIdx(image_path, 3));
    LOCKSTEP_ASSIGN_OR_RETURN(at::Tensor label, ReadIdx(label_path, 1));
    if (image.size(0) != label.size(0)) {
      return absl::InvalidArgumentError(absl::StrCat("MNIST folder ", folder, ": ", image.size(0), " pictures in ",
                                                     image_path, " but ", label.size(0), " labels in ", label_path));
    }
    if (label.numel() > 0 && label.max().item<int64_t>() > 9) {
      return absl::InvalidArgumentError(
          absl::StrCat("IDX file ", label_path, ": label ", label.max().item<int64_t>(), " is not from 0 to 9"));
    }
    images.push_back(image.unsqueeze(1));
    labels.push_back(label.to(at::kLong));
  }
  if (images.empty()) {
    return absl::NotFoundError(absl::StrCat("MNIST folder ", folder,
                                            ": neither train-images-idx3-ubyte with train-labels-idx1-ubyte nor the "
                                            "t10k- pair is there (plain or with .gz)"));
  }
  MnistData data{at::cat(images), at::cat(labels)};
  if (data.labels.numel() == 0) {
    return absl::InvalidArgumentError(absl::StrCat("MNIST folder ", folder, ": its files hold no pictures"));
  }
  return data;
}

absl::StatusOr<MnistData> LoadMnist(const std::string& path) {
  struct stat info {};
  if (stat(path.c_str(), &info) == 0 && S_ISDIR(info.st_mode)) return LoadMnistIdx(path);
  return LoadMnistCsv(path);
}

}  // namespace lockstep
