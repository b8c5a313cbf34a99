#include <absl/status/status.h>
#include <absl/strings/match.h>
#include <absl/strings/str_cat.h>
#include <absl/strings/str_join.h>

#include <algorithm>
#include <map>
#include <utility>

#include "lockstep/base/prefixed.h"
#include "lockstep/base/status_macros.h"
#include "lockstep/checkpoint/pretrained.h"
#include "lockstep/checkpoint/pth.h"
#include "lockstep/checkpoint/state_dict.h"
#include "lockstep/base/logging.h"

namespace lockstep {
namespace {

constexpr char kWrapped[] = "module.";

/// The state dict in a checkpoint, or all of it.
Value StateIn(Value file) {
  for (const char* key : {"state_dict", "model"}) {
    const Value* state = file.find(key);
    if (state != nullptr && state->dict() != nullptr) return *state;
  }
  return file;
}

/// "module." if all names begin with it, and the module has no child of that name.
std::string PrefixOf(const ValueDict& state, const torch::nn::Module& module) {
  if (module.named_children().contains("module")) return "";
  const bool wrapped = std::all_of(state.items.begin(), state.items.end(), [](const auto& item) {
    return item.first.string() != nullptr && absl::StartsWith(*item.first.string(), kWrapped);
  });
  return wrapped ? kWrapped : "";
}

bool HasOtherShape(const Value& saved, const Value* ours) {
  return saved.tensor() != nullptr && ours != nullptr && saved.tensor()->sizes() != ours->tensor()->sizes();
}

/// Takes what begins with `name` (behind `prefix`) out of the state if a tensor there has another shape than the
/// module's. Returns the module's names that this leaves.
std::vector<std::string> TakeOutIfOther(ValueDict& state, const std::string& prefix, const std::string& name,
                                        const torch::nn::Module& module) {
  const Value ours = ModuleState(module);
  const auto belongs = [&](const auto& item) {
    return item.first.string() != nullptr && absl::StartsWith(*item.first.string(), prefix + name);
  };
  const bool other = std::any_of(state.items.begin(), state.items.end(), [&](const auto& item) {
    return belongs(item) && HasOtherShape(item.second, ours.find(item.first.string()->substr(prefix.size())));
  });
  std::vector<std::string> left;
  if (!other) return left;
  state.items.erase(std::remove_if(state.items.begin(), state.items.end(), belongs), state.items.end());
  for (const auto& [key, value] : ours.dict()->items) {
    if (absl::StartsWith(*key.string(), name)) left.push_back(*key.string());
  }
  return left;
}

}  // namespace

absl::StatusOr<PretrainedReport> LoadPretrained(const std::string& path, torch::nn::Module& module,
                                                const LoadPretrainedOptions& options) {
  LOCKSTEP_ASSIGN_OR_RETURN(Value file, LoadPth(path, {at::kCPU, options.verify}));
  Value state = StateIn(std::move(file));
  if (state.dict() == nullptr) {
    return absl::InvalidArgumentError(absl::StrCat(path, ": holds no state dict but a ", state.type_name()));
  }
  LoadModuleOptions load;
  load.strict = false;
  load.prefix = PrefixOf(*state.dict(), module);
  PretrainedReport report;
  if (!options.classifier.empty()) {
    report.left_as_is = TakeOutIfOther(*state.dict(), load.prefix, options.classifier + ".", module);
  }

  LOCKSTEP_ASSIGN_OR_RETURN(ModuleStateDifferences differences, CompareModuleState(state, module, load.prefix));
  const auto may_be_missing = [&](const std::string& name) {
    return absl::EndsWith(name, ".num_batches_tracked") ||
           std::find(report.left_as_is.begin(), report.left_as_is.end(), name) != report.left_as_is.end();
  };
  auto& missing = differences.missing;
  missing.erase(std::remove_if(missing.begin(), missing.end(), may_be_missing), missing.end());
  if (!differences.empty()) {
    return absl::InvalidArgumentError(absl::StrCat(path, ": weights of another model: ", differences.ToString()));
  }
  LOCKSTEP_RETURN_IF_ERROR(Prefixed(path + ": ", LoadModuleState(state, module, load)));
  LOG(INFO) << "pretrained weights: " << path
            << (report.left_as_is.empty() ? "" : "; of another size and left as they are: ")
            << absl::StrJoin(report.left_as_is, ", ");
  return report;
}

}  // namespace lockstep
