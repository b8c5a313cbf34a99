#include <absl/status/status.h>
#include <absl/strings/str_cat.h>
#include <absl/strings/str_join.h>
#include <c10/core/GradMode.h>
#include <c10/util/StringUtil.h>

#include <cmath>
#include <map>
#include <utility>
#include <vector>

#include "lockstep/base/status_macros.h"
#include "lockstep/checkpoint/internal/mapped_file.h"
#include "lockstep/checkpoint/state_dict.h"

namespace lockstep {
namespace {

/// Python's order: a module's parameters, its buffers, then its children.
void Collect(const torch::nn::Module& module, const std::string& prefix,
             std::vector<std::pair<std::string, at::Tensor>>& into) {
  for (const auto& item : module.named_parameters(/*recurse=*/false))
    into.emplace_back(prefix + item.key(), item.value());
  for (const auto& item : module.named_buffers(/*recurse=*/false)) into.emplace_back(prefix + item.key(), item.value());
  for (const auto& item : module.named_children()) Collect(*item.value(), prefix + item.key() + ".", into);
}

std::string Shape(const at::Tensor& tensor) { return c10::str(tensor.sizes()); }

}  // namespace

Value ModuleState(const torch::nn::Module& module) {
  std::vector<std::pair<std::string, at::Tensor>> tensors;
  Collect(module, "", tensors);
  ValueDict state;
  state.kind = ValueDict::Kind::kOrdered;
  for (auto& [name, tensor] : tensors) {
    if (tensor.defined()) state.items.emplace_back(name, tensor.detach());
  }
  return state;
}

namespace {

/// The state's entries by name, without the prefix.
std::map<std::string, const Value*> ByName(const ValueDict& state, const std::string& prefix) {
  std::map<std::string, const Value*> entries;
  for (const auto& [key, value] : state.items) {
    const std::string name = key.string() != nullptr ? *key.string() : "a key that is a " + key.type_name();
    const bool prefixed = !prefix.empty() && name.rfind(prefix, 0) == 0;
    entries[prefixed ? name.substr(prefix.size()) : name] = &value;
  }
  return entries;
}

std::string WhatIsWrong(const std::string& name, const Value& saved, const at::Tensor& tensor) {
  if (saved.tensor() == nullptr) return absl::StrCat("'", name, "' is a ", saved.type_name(), ", not a tensor");
  if (saved.tensor()->sizes() == tensor.sizes()) return "";
  return absl::StrCat("'", name, "' has shape ", Shape(*saved.tensor()), " in the checkpoint, ", Shape(tensor),
                      " in the model");
}

}  // namespace

std::string ModuleStateDifferences::ToString() const {
  std::vector<std::string> parts = wrong;
  for (const auto& name : missing) parts.push_back(absl::StrCat("'", name, "' is missing from the checkpoint"));
  for (const auto& name : unexpected) parts.push_back(absl::StrCat("'", name, "' is not in the model"));
  constexpr size_t kMost = 20;  // of another model's hundreds
  const size_t more = parts.size() > kMost ? parts.size() - kMost : 0;
  parts.resize(parts.size() - more);
  return absl::StrJoin(parts, "; ") + (more > 0 ? absl::StrCat("; and ", more, " more") : "");
}

absl::StatusOr<ModuleStateDifferences> CompareModuleState(const Value& state, const torch::nn::Module& module,
                                                          const std::string& prefix) {
  if (state.dict() == nullptr) {
    return absl::InvalidArgumentError(absl::StrCat("model state: a ", state.type_name(), ", not a dict"));
  }
  auto entries = ByName(*state.dict(), prefix);
  std::vector<std::pair<std::string, at::Tensor>> tensors;
  Collect(module, "", tensors);
  ModuleStateDifferences differences;
  for (const auto& [name, tensor] : tensors) {
    if (!tensor.defined()) continue;
    const auto saved = entries.find(name);
    if (saved == entries.end()) {
      differences.missing.push_back(name);
      continue;
    }
    const std::string wrong = WhatIsWrong(name, *saved->second, tensor);
    if (!wrong.empty()) differences.wrong.push_back(wrong);
    entries.erase(saved);
  }
  for (const auto& [name, value] : entries) differences.unexpected.push_back(name);
  return differences;
}

absl::Status CheckModuleState(const Value& state, const torch::nn::Module& module, const LoadModuleOptions& options) {
  LOCKSTEP_ASSIGN_OR_RETURN(const auto differences, CompareModuleState(state, module, options.prefix));
  if (!options.strict || differences.empty()) return absl::OkStatus();
  return absl::InvalidArgumentError("model state is of another model: " + differences.ToString());
}

absl::Status LoadModuleState(const Value& state, torch::nn::Module& module, const LoadModuleOptions& options) {
  LOCKSTEP_RETURN_IF_ERROR(CheckModuleState(state, module, options));
  const auto entries = ByName(*state.dict(), options.prefix);
  std::vector<std::pair<std::string, at::Tensor>> tensors;
  Collect(module, "", tensors);
  const at::NoGradGuard no_grad;
  for (auto& [name, tensor] : tensors) {
    const auto saved = entries.find(name);
    if (!tensor.defined() || saved == entries.end() || !WhatIsWrong(name, *saved->second, tensor).empty()) continue;
    const at::Tensor& from = *saved->second->tensor();
    tensor.detach().copy_(from);
    // Of a file that is mapped no more than one tensor at a time is in memory.
    if (from.is_cpu() && from.nbytes() > (1 << 20)) internal::ReleaseUnchanged(from.const_data_ptr(), from.nbytes());
  }
  return absl::OkStatus();
}

Value NumbersState(const std::map<std::string, double>& numbers) {
  ValueDict state;
  for (const auto& [name, number] : numbers) {
    const bool whole = std::abs(number) < 1e15 && number == std::floor(number) && name != "scale" && name != "best" &&
                       name.find("factor") == std::string::npos;
    state.items.emplace_back(name, whole ? Value(static_cast<int64_t>(number)) : Value(number));
  }
  return state;
}

absl::StatusOr<std::map<std::string, double>> LoadNumbersState(const Value& state) {
  if (state.dict() == nullptr) return absl::InvalidArgumentError(absl::StrCat("a ", state.type_name(), ", not a dict"));
  std::map<std::string, double> numbers;
  for (const auto& [key, value] : state.dict()->items) {
    if (key.string() == nullptr) return absl::InvalidArgumentError("a key that is no string");
    LOCKSTEP_ASSIGN_OR_RETURN(numbers[*key.string()], value.number());
  }
  return numbers;
}

}  // namespace lockstep
