#include "lockstep/parallel/pipeline_state.h"

#include <absl/strings/str_cat.h>
#include <absl/strings/str_join.h>
#include <absl/strings/str_split.h>
#include <c10/util/Exception.h>

#include <cstdlib>
#include <map>
#include <set>
#include <string>
#include <utility>

#include "lockstep/base/status_macros.h"
#include "lockstep/checkpoint/gather_values.h"
#include "lockstep/checkpoint/state_dict.h"
#include "lockstep/comm/agree.h"
#include "lockstep/comm/texts.h"

namespace lockstep {
namespace {

std::set<std::string> NamesOf(const torch::nn::Module& module) {
  std::set<std::string> names;
  const Value state = ModuleState(module);  // not a temporary of the loop, which would go before it
  for (const auto& [key, tensor] : state.dict()->items) names.insert(*key.string());
  return names;
}

/// Of the whole model's state what a stage has.
Value PartOf(const Value& whole, const std::set<std::string>& names) {
  if (whole.dict() == nullptr) return whole;
  ValueDict part;
  for (const auto& item : whole.dict()->items) {
    if (item.first.string() != nullptr && names.count(*item.first.string()) > 0) part.items.push_back(item);
  }
  return part;
}

Value Numbers(const std::vector<int64_t>& numbers) { return ValueList(numbers.begin(), numbers.end()); }

/// The numbers from 0 on, as many in each group as another list has.
std::vector<std::vector<int64_t>> Counted(const std::vector<std::vector<int64_t>>& like) {
  std::vector<std::vector<int64_t>> counted;
  int64_t next = 0;
  for (const auto& group : like) {
    counted.emplace_back();
    for (size_t i = 0; i < group.size(); ++i) counted.back().push_back(next++);
  }
  return counted;
}

/// The entries of `from`, whose numbers are in `old`, under those in `fresh`.
void Renumber(const Value* from, const std::vector<std::vector<int64_t>>& old,
              const std::vector<std::vector<int64_t>>& fresh, ValueDict& into) {
  if (from == nullptr || from->dict() == nullptr) return;
  for (const auto& [key, entry] : from->dict()->items) {
    const int64_t* const number = std::get_if<int64_t>(&key.get());
    for (size_t group = 0; number != nullptr && group < old.size(); ++group) {
      for (size_t i = 0; i < old[group].size(); ++i) {
        if (old[group][i] == *number) into.items.emplace_back(fresh[group][i], entry);
      }
    }
  }
}

}  // namespace

PipelineState::PipelineState(torch::nn::Module& stage, torch::optim::Optimizer& optimizer, ProcessGroupPtr group)
    : stage_(stage), optimizer_(optimizer), group_(std::move(group)) {
  CheckNames();
  std::vector<size_t> mine;
  for (const auto& own : optimizer_.param_groups()) mine.push_back(own.params().size());
  for (const std::string& text : AllGatherString(absl::StrJoin(mine, ","), group_)) {
    counts_.emplace_back();
    for (const auto count : absl::StrSplit(text, ',')) counts_.back().push_back(std::atoll(std::string(count).c_str()));
    TORCH_CHECK(counts_.back().size() == counts_[0].size(), "PipelineState: the optimizer of stage ",
                counts_.size() - 1, " has ", counts_.back().size(), " parameter groups, that of stage 0 has ",
                counts_[0].size());
  }
}

void PipelineState::CheckNames() const {
  const std::set<std::string> names = NamesOf(stage_);
  std::map<std::string, size_t> seen;
  const auto all = AllGatherString(absl::StrJoin(names, "\n"), group_);
  for (size_t stage = 0; stage < all.size(); ++stage) {
    for (const std::string& name : std::vector<std::string>(absl::StrSplit(all[stage], '\n', absl::SkipEmpty()))) {
      const auto [first, is_new] = seen.emplace(name, stage);
      TORCH_CHECK(is_new, "PipelineState: stages ", first->second, " and ", stage, " both have a '", name,
                  "'; give them the names that they have in the whole model");
    }
  }
}

std::vector<std::vector<int64_t>> PipelineState::IndicesOf(int stage) const {
  std::vector<std::vector<int64_t>> indices(counts_[0].size());
  int64_t next = 0;
  for (size_t group = 0; group < indices.size(); ++group) {
    for (size_t s = 0; s < counts_.size(); ++s) {
      for (int64_t i = 0; i < counts_[s][group]; ++i, ++next) {
        if (s == static_cast<size_t>(stage)) indices[group].push_back(next);
      }
    }
  }
  return indices;
}

absl::StatusOr<Value> PipelineState::WholeModel() {
  LOCKSTEP_ASSIGN_OR_RETURN(const auto stages, GatherValues(ModuleState(stage_), group_));
  ValueDict whole;
  whole.kind = ValueDict::Kind::kOrdered;
  for (const Value& stage : stages) {
    whole.items.insert(whole.items.end(), stage.dict()->items.begin(), stage.dict()->items.end());
  }
  return Value(std::move(whole));
}

absl::StatusOr<Value> PipelineState::WholeOptimizer() {
  auto mine = OptimizerState(optimizer_);
  LOCKSTEP_RETURN_IF_ERROR(AgreeOnStatus(mine.status(), group_));
  LOCKSTEP_ASSIGN_OR_RETURN(const auto stages, GatherValues(*mine, group_));
  if (stages.empty()) return Value();
  ValueDict state;
  std::vector<std::vector<int64_t>> of_group(counts_[0].size());
  for (size_t s = 0; s < stages.size(); ++s) {
    const auto indices = IndicesOf(static_cast<int>(s));
    Renumber(stages[s].find("state"), Counted(indices), indices, state);
    for (size_t g = 0; g < indices.size(); ++g)
      of_group[g].insert(of_group[g].end(), indices[g].begin(), indices[g].end());
  }
  ValueList groups = *stages[0].find("param_groups")->items();
  for (size_t g = 0; g < groups.size(); ++g) groups[g].set("params", Numbers(of_group[g]));
  Value whole((ValueDict()));
  whole.set("state", std::move(state));
  whole.set("param_groups", std::move(groups));
  return whole;
}

absl::Status PipelineState::CheckModel(const Value& whole) const {
  return CheckModuleState(PartOf(whole, NamesOf(stage_)), stage_);
}

absl::Status PipelineState::LoadModel(const Value& whole) {
  return LoadModuleState(PartOf(whole, NamesOf(stage_)), stage_);
}

absl::Status PipelineState::LoadOptimizer(const Value& whole) {
  const Value* const groups = whole.find("param_groups");
  if (groups == nullptr || groups->items() == nullptr || groups->items()->size() != counts_[0].size()) {
    return absl::InvalidArgumentError(absl::StrCat("it has not ", counts_[0].size(), " parameter groups"));
  }
  const auto indices = IndicesOf(GetRank(group_)), own = Counted(indices);
  ValueDict state;
  Renumber(whole.find("state"), indices, own, state);
  ValueList mine = *groups->items();
  for (size_t g = 0; g < mine.size(); ++g) {
    int64_t all = 0;
    for (const auto& stage : counts_) all += stage[g];
    const Value* const params = mine[g].find("params");
    if (params == nullptr || params->items() == nullptr || static_cast<int64_t>(params->items()->size()) != all) {
      return absl::InvalidArgumentError(absl::StrCat("its group ", g, " has not ", all, " parameters"));
    }
    mine[g].set("params", Numbers(own[g]));
  }
  Value part((ValueDict()));
  part.set("state", std::move(state));
  part.set("param_groups", std::move(mine));
  return LoadOptimizerState(part, optimizer_);
}

}  // namespace lockstep
