#include "lockstep/examples/cifar10/best_model.h"

#include <absl/strings/match.h>
#include <absl/strings/str_cat.h>
#include <absl/strings/str_format.h>
#include <c10/util/Exception.h>

#include <filesystem>
#include <system_error>

#include "lockstep/checkpoint/pth.h"
#include "lockstep/checkpoint/state_dict.h"

namespace cifar10 {

void BestModel::OnValidated(const lockstep::EpochInfo& info) {
  if (!info.improved) return;
  accuracy_ = info.metrics.at("val_accuracy");
  path_ = absl::StrFormat("%s/%s-%d-%.4f.pth", folder_, name_, info.epoch, accuracy_);
  const absl::Status saved = lockstep::SavePth(lockstep::ModuleState(module_), path_);
  TORCH_CHECK(saved.ok(), std::string(saved.message()));
  RemoveOthers();
}

void BestModel::RemoveOthers() const {
  std::error_code ignored;
  for (const auto& entry : std::filesystem::directory_iterator(folder_, ignored)) {
    const std::string file = entry.path().filename().string();
    // <name>-<digits>-<digits>.<digits>.pth
    if (!absl::StartsWith(file, name_ + "-") || !absl::EndsWith(file, ".pth")) continue;
    const std::string middle = file.substr(name_.size() + 1, file.size() - name_.size() - 5);
    if (middle.find_first_not_of("0123456789-.") == std::string::npos && entry.path() != path_) {
      std::filesystem::remove(entry.path(), ignored);
    }
  }
}

}  // namespace cifar10
