#include <absl/status/status.h>
#include <absl/strings/str_cat.h>
#include <c10/core/GradMode.h>
#include <c10/util/StringUtil.h>

#include <cmath>

#include "lockstep/base/status_macros.h"
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

absl::Status CheckModuleState(const Value& state, const torch::nn::Module& module) {
  if (state.dict() == nullptr)
    return absl::InvalidArgumentError(absl::StrCat("model state: a ", state.type_name(), ", not a dict"));
  std::vector<std::pair<std::string, at::Tensor>> tensors;
  Collect(module, "", tensors);
  std::string first;
  int wrong = 0;
  const auto complain = [&](const std::string& what) {
    if (wrong++ == 0) first = what;
  };
  size_t used = 0;
  for (const auto& [name, tensor] : tensors) {
    if (!tensor.defined()) continue;
    const Value* saved = state.find(name);
    if (saved == nullptr) {
      complain(absl::StrCat("'", name, "' is missing from the checkpoint"));
      continue;
    }
    ++used;
    if (saved->tensor() == nullptr) {
      complain(absl::StrCat("'", name, "' is a ", saved->type_name(), ", not a tensor"));
    } else if (saved->tensor()->sizes() != tensor.sizes()) {
      complain(absl::StrCat("'", name, "' has shape ", Shape(*saved->tensor()), " in the checkpoint, ", Shape(tensor),
                            " in the model"));
    }
  }
  if (used < state.dict()->items.size()) {
    for (const auto& [key, value] : state.dict()->items) {
      bool known = false;
      for (const auto& item : tensors) known = known || (key.string() != nullptr && *key.string() == item.first);
      if (!known)
        complain(absl::StrCat("'", key.string() != nullptr ? *key.string() : key.type_name(), "' is not in the model"));
    }
  }
  if (wrong > 0) {
    return absl::InvalidArgumentError(absl::StrCat("model state is of another model: ", first,
                                                   wrong > 1 ? absl::StrCat(" (and ", wrong - 1, " more)") : ""));
  }
  return absl::OkStatus();
}

absl::Status LoadModuleState(const Value& state, torch::nn::Module& module) {
  LOCKSTEP_RETURN_IF_ERROR(CheckModuleState(state, module));
  std::vector<std::pair<std::string, at::Tensor>> tensors;
  Collect(module, "", tensors);
  const at::NoGradGuard no_grad;
  for (auto& [name, tensor] : tensors) {
    if (tensor.defined()) tensor.detach().copy_(*state.find(name)->tensor());
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
