#include "lockstep/data/image_folder.h"

#include <absl/status/status.h>
#include <absl/strings/ascii.h>
#include <absl/strings/match.h>
#include <absl/strings/str_cat.h>
#include <ATen/Functions.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <system_error>

#include "lockstep/base/status_macros.h"

namespace lockstep {
namespace {

namespace fs = std::filesystem;

absl::Status FolderError(const std::string& path, const std::error_code& error) {
  return absl::UnavailableError(absl::StrCat("image folder ", path, ": ", error.message()));
}

bool IsImage(const std::string& name) {
  const std::string lower = absl::AsciiStrToLower(name);
  return absl::EndsWith(lower, ".png") || absl::EndsWith(lower, ".jpg") || absl::EndsWith(lower, ".jpeg");
}

/// Folders by their path, each with its pictures' names.
using Listing = std::map<std::string, std::vector<std::string>>;

/// Follows links as torchvision does, but not to a folder that it is in.
absl::Status List(const std::string& folder, std::vector<std::pair<dev_t, ino_t>>& above, Listing& listing) {
  struct stat info {};
  if (stat(folder.c_str(), &info) != 0) return FolderError(folder, {errno, std::generic_category()});
  const std::pair<dev_t, ino_t> self(info.st_dev, info.st_ino);
  if (std::find(above.begin(), above.end(), self) != above.end()) {
    return absl::InvalidArgumentError(absl::StrCat("image folder ", folder, ": a link to a folder that it is in"));
  }
  above.push_back(self);
  std::error_code error;
  std::vector<std::string>& names = listing[folder];
  for (fs::directory_iterator entry(folder, error), end; !error && entry != end; entry.increment(error)) {
    const std::string name = entry->path().filename().string();
    std::error_code ignored;
    if (entry->is_directory(ignored)) {
      LOCKSTEP_RETURN_IF_ERROR(List(folder + "/" + name, above, listing));
    } else if (IsImage(name)) {
      names.push_back(name);
    }
  }
  if (error) return FolderError(folder, error);
  std::sort(names.begin(), names.end());
  above.pop_back();
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<ImageFolder> ImageFolder::Open(const std::string& root, const ReadImageOptions& options) {
  ImageFolder data;
  data.options_ = options;
  std::error_code error;
  if (!fs::is_directory(root, error))
    return absl::NotFoundError(absl::StrCat("image folder ", root, ": no such folder"));
  for (fs::directory_iterator entry(root, error), end; !error && entry != end; entry.increment(error)) {
    std::error_code ignored;
    if (entry->is_directory(ignored)) data.classes_.push_back(entry->path().filename().string());
  }
  if (error) return FolderError(root, error);
  if (data.classes_.empty()) {
    return absl::InvalidArgumentError(absl::StrCat("image folder ", root, ": no folders in it, one for each class"));
  }
  std::sort(data.classes_.begin(), data.classes_.end());
  for (size_t c = 0; c < data.classes_.size(); ++c) {
    const auto label = static_cast<int64_t>(c);
    data.class_to_idx_[data.classes_[c]] = label;
    Listing listing;
    std::vector<std::pair<dev_t, ino_t>> above;
    LOCKSTEP_RETURN_IF_ERROR(List((fs::path(root) / data.classes_[c]).string(), above, listing));
    const size_t before = data.samples_.size();
    for (const auto& [folder, names] : listing) {
      for (const std::string& name : names) data.samples_.emplace_back(folder + "/" + name, label);
    }
    if (data.samples_.size() == before) {
      return absl::InvalidArgumentError(
          absl::StrCat("image folder ", root, ": class ", data.classes_[c], " has no .png, .jpg or .jpeg files"));
    }
  }
  return data;
}

torch::data::Example<> ImageFolder::get(size_t index) {
  TORCH_CHECK_INDEX(index < samples_.size(), "ImageFolder: index ", index, " of ", samples_.size(), " pictures");
  const auto& [path, label] = samples_[index];
  auto image = ReadImage(path, options_);
  TORCH_CHECK(image.ok(), std::string(image.status().message()));
  return {*std::move(image), at::scalar_tensor(label, at::kLong)};
}

}  // namespace lockstep
