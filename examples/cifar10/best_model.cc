#include "lockstep/examples/cifar10/best_model.h"

#include <absl/strings/match.h>
#include <absl/strings/str_format.h>
#include <c10/util/Exception.h>

#include <filesystem>
#include <system_error>
#include <utility>

#include "lockstep/checkpoint/pth.h"
#include "lockstep/checkpoint/state_dict.h"

#include "lockstep/base/logging.h"

namespace cifar10 {

BestModel::BestModel(std::string folder, std::string name, torch::nn::Module& module, bool failure_is_error)
    : folder_(std::move(folder)), name_(std::move(name)), module_(module), failure_is_error_(failure_is_error) {
  for (const auto& file : Files()) path_ = file;
}

void BestModel::OnValidated(const lockstep::EpochInfo& info) {
  if (!info.improved) return;
  const std::string path =
      absl::StrFormat("%s/%s-%d-%.4f.pth", folder_, name_, info.epoch, info.metrics.at("val_accuracy"));
  const absl::Status saved = lockstep::SavePth(lockstep::ModuleState(module_), path);
  TORCH_CHECK(saved.ok() || !failure_is_error_, std::string(saved.message()));
  if (!saved.ok()) {
    LOG(WARNING) << "the best model was not saved: " << std::string(saved.message());
    return;
  }
  path_ = path;
  std::error_code ignored;
  for (const auto& file : Files()) {
    if (file != path_) std::filesystem::remove(file, ignored);
  }
}

std::vector<std::string> BestModel::Files() const {
  std::vector<std::string> files;
  std::error_code ignored;
  for (const auto& entry : std::filesystem::directory_iterator(folder_, ignored)) {
    const std::string file = entry.path().filename().string();
    // <name>-<digits>-<digits>.<digits>.pth
    if (!absl::StartsWith(file, name_ + "-") || !absl::EndsWith(file, ".pth")) continue;
    const std::string middle = file.substr(name_.size() + 1, file.size() - name_.size() - 5);
    if (middle.find_first_not_of("0123456789-.") == std::string::npos) files.push_back(folder_ + "/" + file);
  }
  return files;
}

}  // namespace cifar10
