#pragma once

#include <absl/status/statusor.h>
#include <torch/data/datasets/base.h>

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/data/image_file.h"

namespace lockstep {

/// Pictures in folders named by their class, as torchvision's ImageFolder: classes are the sorted names of the root's
/// folders, and their files (in folders of any depth, .png, .jpg or .jpeg in any case) come class by class, sorted by
/// folder and name. torchvision also takes other formats, which are left out here.
class ImageFolder : public torch::data::datasets::Dataset<ImageFolder> {
 public:
  /// Lists the files. Errors: NotFound for a folder that isn't there; InvalidArgument for one without classes, or a
  /// class without pictures, as in torchvision; Unavailable with what the system says.
  static absl::StatusOr<ImageFolder> Open(const std::string& root, const ReadImageOptions& options = {});

  /// The picture, uint8 (3, H, W), and its class, int64 (). Throws c10::Error with ReadImage's error, which names the
  /// file, and for an index that is too large. Safe to call from many threads.
  torch::data::Example<> get(size_t index) override;
  std::optional<size_t> size() const override { return samples_.size(); }

  const std::vector<std::string>& classes() const { return classes_; }
  const std::map<std::string, int64_t>& class_to_idx() const { return class_to_idx_; }
  /// Path and class of each picture.
  const std::vector<std::pair<std::string, int64_t>>& samples() const { return samples_; }

 private:
  ImageFolder() = default;

  ReadImageOptions options_;
  std::vector<std::string> classes_;
  std::map<std::string, int64_t> class_to_idx_;
  std::vector<std::pair<std::string, int64_t>> samples_;
};

}  // namespace lockstep
