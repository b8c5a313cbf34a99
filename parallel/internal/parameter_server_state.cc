#include "lockstep/parallel/internal/parameter_server_state.h"

#include <absl/strings/str_cat.h>
#include <c10/core/GradMode.h>

#include <algorithm>
#include <map>
#include <string>
#include <utility>

#include "lockstep/base/status_macros.h"
#include "lockstep/checkpoint/state_dict.h"

namespace lockstep::internal {
namespace {

Value EmptyDict() { return Value((ValueDict())); }

/// A group's options without its parameters.
Value Options(const Value& group) {
  Value options = EmptyDict();
  for (const auto& [key, value] : group.dict()->items) {
    if (*key.string() != "params") options.set(*key.string(), value);
  }
  return options;
}

absl::Status Unfit(const std::string& what) {
  return absl::InvalidArgumentError(absl::StrCat("optimizer state: ", what));
}

}  // namespace

Value PartState(const std::vector<ServedTensor>& tensors, const PartOptimizer& part, int64_t steps) {
  Value by_name = EmptyDict(), state = EmptyDict(), options = EmptyDict(), result = EmptyDict();
  for (const auto& served : tensors) by_name.set(served.name, served.tensor.detach());
  if (part.optimizer) {
    const auto whole = OptimizerState(*part.optimizer);
    if (whole.ok()) {
      for (const auto& [index, entry] : whole->find("state")->dict()->items) {
        state.set(part.names[std::get<int64_t>(index.get())], entry);
      }
      for (size_t g = 0; g < part.groups.size(); ++g) {
        if (part.groups[g] < 0) continue;
        options.set(std::to_string(part.groups[g]), Options((*whole->find("param_groups")->items())[g]));
      }
    } else {
      result.set("unsaved", std::string(whole.status().message()));
    }
  }
  result.set("tensors", std::move(by_name));
  result.set("state", std::move(state));
  result.set("options", std::move(options));
  result.set("steps", steps);
  return result;
}

absl::Status LoadTensors(const std::vector<Value>& parts, const ServedModel& model) {
  const at::NoGradGuard no_grad;
  for (const auto& served : model.tensors()) {
    const at::Tensor* found = nullptr;
    for (const Value& part : parts) {
      const Value* const tensors = part.find("tensors");
      const Value* const entry = tensors == nullptr ? nullptr : tensors->find(served.name);
      if (entry != nullptr) found = entry->tensor();
    }
    if (found == nullptr) return absl::InvalidArgumentError(absl::StrCat("no server has '", served.name, "'"));
    if (found->sizes() != served.tensor.sizes()) {
      return absl::InvalidArgumentError(absl::StrCat("'", served.name, "' has another shape on its server"));
    }
    served.tensor.detach().copy_(*found);
  }
  return absl::OkStatus();
}

absl::StatusOr<Value> WholeOptimizer(const std::vector<Value>& parts, const ServedModel& model) {
  for (const Value& part : parts) {
    if (const Value* const why = part.find("unsaved")) return absl::InvalidArgumentError(*why->string());
  }
  ValueDict states;
  ValueList groups;
  int64_t index = 0;
  const auto names = model.GroupNames();
  const auto find = [&](const char* what, const std::string& key) -> const Value* {
    for (const Value& part : parts) {
      const Value* const entries = part.find(what);
      const Value* const entry = entries == nullptr ? nullptr : entries->find(key);
      if (entry != nullptr) return entry;
    }
    return nullptr;
  };
  for (size_t g = 0; g < names.size(); ++g) {
    ValueList indices;
    for (const auto& name : names[g]) {
      if (const Value* const entry = find("state", name)) states.items.emplace_back(index, *entry);
      indices.emplace_back(index++);
    }
    const Value* const options = find("options", std::to_string(g));
    Value group = options == nullptr ? EmptyDict() : *options;
    group.set("params", std::move(indices));
    groups.push_back(std::move(group));
  }
  Value whole = EmptyDict();
  whole.set("state", std::move(states));
  whole.set("param_groups", std::move(groups));
  return whole;
}

absl::Status LoadPartOptimizer(const Value& whole, const ServedModel& model, PartOptimizer& part) {
  const Value *const states = whole.find("state"), *const groups = whole.find("param_groups");
  if (states == nullptr || states->dict() == nullptr || groups == nullptr || groups->items() == nullptr) {
    return Unfit("'state' or 'param_groups' is missing");
  }
  const auto names = model.GroupNames();
  if (groups->items()->size() != names.size()) {
    return Unfit(absl::StrCat("it has ", groups->items()->size(), " parameter groups, the optimizer ", names.size()));
  }
  std::map<std::string, int64_t> index_of;
  for (size_t g = 0; g < names.size(); ++g) {
    const Value* const params = (*groups->items())[g].find("params");
    if (params == nullptr || params->items() == nullptr || params->items()->size() != names[g].size()) {
      return Unfit(absl::StrCat("parameter group ", g, " has another number of parameters than the optimizer's"));
    }
    for (size_t i = 0; i < names[g].size(); ++i) {
      if (const auto* const index = std::get_if<int64_t>(&(*params->items())[i].get())) index_of[names[g][i]] = *index;
    }
  }
  if (!part.optimizer) return absl::OkStatus();
  ValueDict part_states;
  ValueList part_groups;
  int64_t next = 0;
  for (size_t g = 0; g < part.groups.size(); ++g) {
    ValueList indices;
    for (size_t i = 0; i < part.optimizer->param_groups()[g].params().size(); ++i) {
      const auto wanted = index_of.find(part.names[next]);
      for (const auto& [key, entry] : states->dict()->items) {
        const auto* const index = std::get_if<int64_t>(&key.get());
        if (index != nullptr && wanted != index_of.end() && *index == wanted->second) {
          part_states.items.emplace_back(next, entry);
        }
      }
      indices.emplace_back(next++);
    }
    // A group without parameters has nobody's options.
    Value group = part.groups[g] < 0 ? Options((*groups->items())[0]) : Options((*groups->items())[part.groups[g]]);
    group.set("params", std::move(indices));
    part_groups.push_back(std::move(group));
  }
  Value own = EmptyDict();
  own.set("state", std::move(part_states));
  own.set("param_groups", std::move(part_groups));
  return LoadOptimizerState(own, *part.optimizer);
}

}  // namespace lockstep::internal
