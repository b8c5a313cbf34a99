#include "lockstep/ddp/sharded_state.h"

#include <absl/status/status.h>
#include <absl/strings/str_cat.h>
#include <ATen/Functions.h>
#include <c10/core/GradMode.h>

#include <cstdint>
#include <map>
#include <set>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/base/status_macros.h"
#include "lockstep/checkpoint/gather_values.h"
#include "lockstep/checkpoint/state_dict.h"
#include "lockstep/comm/agree.h"
#include "lockstep/comm/texts.h"

namespace lockstep {
namespace {

/// Of the optimizer's parameters.
using PieceOf = std::map<const c10::TensorImpl*, const ShardedReducer::Piece*>;

PieceOf Pieces(const ShardedReducer& reducer) {
  PieceOf pieces;
  for (const auto& piece : reducer.shard()) pieces[piece.tensor.unsafeGetTensorImpl()] = &piece;
  return pieces;
}

absl::Status NoPiece() {
  return absl::InvalidArgumentError("optimizer state: a parameter of the optimizer is no piece of the reducer's shard");
}

/// A rank's pieces: a list, for each group, of [parameter, begin, length, state or None].
absl::StatusOr<Value> State(const torch::optim::Optimizer& optimizer, const ShardedReducer& reducer) {
  LOCKSTEP_ASSIGN_OR_RETURN(const Value own, OptimizerState(optimizer));
  std::map<int64_t, const Value*> states;
  for (const auto& [index, entry] : own.find("state")->dict()->items) {
    states[std::get<int64_t>(index.get())] = &entry;
  }
  const PieceOf pieces = Pieces(reducer);
  ValueList groups;
  int64_t index = 0;
  for (const auto& group : optimizer.param_groups()) {
    ValueList of_group;
    for (const auto& tensor : group.params()) {
      const auto piece = pieces.find(tensor.unsafeGetTensorImpl());
      if (piece == pieces.end()) return NoPiece();
      const auto state = states.find(index++);
      of_group.emplace_back(ValueList{static_cast<int64_t>(piece->second->parameter), piece->second->begin,
                                      piece->second->length, state == states.end() ? Value() : *state->second});
    }
    groups.emplace_back(std::move(of_group));
  }
  return Value(std::move(groups));
}

/// Memory of a parameter's elements, in the order in which pieces count them, and a tensor of its shape over it.
std::pair<at::Tensor, at::Tensor> NewWhole(const at::Tensor& parameter, at::ScalarType dtype) {
  const at::Tensor flat = at::zeros({parameter.numel()}, dtype);
  return {flat, flat.as_strided(parameter.sizes(), parameter.strides())};
}

/// Puts a piece's state into that of its parameter.
void Merge(const at::Tensor& parameter, int64_t begin, int64_t length, const Value& piece,
           std::map<std::string, std::pair<at::Tensor, at::Tensor>>& wholes, Value& state) {
  for (const auto& [key, value] : piece.dict()->items) {
    const at::Tensor* const tensor = value.tensor();
    if (tensor == nullptr || tensor->dim() == 0) {
      state.set(*key.string(), value);
      continue;
    }
    auto found = wholes.find(*key.string());
    if (found == wholes.end()) {
      found = wholes.emplace(*key.string(), NewWhole(parameter, tensor->scalar_type())).first;
      state.set(*key.string(), found->second.second);
    }
    found->second.first.narrow(0, begin, length).copy_(tensor->reshape({-1}));
  }
}

/// A piece's state out of that of its parameter.
absl::StatusOr<Value> Cut(const Value& whole, const ShardedReducer::Piece& piece, const ShardedReducer& reducer) {
  const auto& [name, parameter, sparse] = reducer.parameters()[piece.parameter];
  if (whole.dict() == nullptr) return absl::InvalidArgumentError("optimizer state: an entry that is no dict");
  Value state((ValueDict()));
  for (const auto& [key, value] : whole.dict()->items) {
    const at::Tensor* const tensor = value.tensor();
    if (key.string() == nullptr) return absl::InvalidArgumentError("optimizer state: a key that is no string");
    if (tensor == nullptr || tensor->dim() == 0) {
      state.set(*key.string(), value);
      continue;
    }
    if (tensor->sizes() != parameter.sizes()) {
      return absl::InvalidArgumentError(
          absl::StrCat("optimizer state: '", *key.string(), "' of ", name, " has another shape than the parameter"));
    }
    const auto [flat, shaped] = NewWhole(parameter, tensor->scalar_type());
    shaped.copy_(*tensor);
    state.set(*key.string(), flat.narrow(0, piece.begin, piece.length).clone());
  }
  return state;
}

}  // namespace

std::vector<std::vector<size_t>> GroupMembers(const torch::optim::Optimizer& optimizer, const ShardedReducer& reducer) {
  const PieceOf pieces = Pieces(reducer);
  std::string mine;
  for (size_t g = 0; g < optimizer.param_groups().size(); ++g) {
    for (const auto& tensor : optimizer.param_groups()[g].params()) {
      const auto piece = pieces.find(tensor.unsafeGetTensorImpl());
      if (piece != pieces.end()) absl::StrAppend(&mine, g, " ", piece->second->parameter, " ");
    }
  }
  std::vector<std::set<size_t>> members(optimizer.param_groups().size());
  for (const std::string& of_rank : AllGatherString(mine, reducer.shard_group())) {
    std::istringstream numbers(of_rank);
    for (size_t group, parameter; numbers >> group >> parameter;) {
      if (group < members.size()) members[group].insert(parameter);
    }
  }
  std::vector<std::vector<size_t>> sorted;
  for (const auto& group : members) sorted.emplace_back(group.begin(), group.end());
  return sorted;
}

absl::StatusOr<Value> WholeOptimizerState(const torch::optim::Optimizer& optimizer, const ShardedReducer& reducer) {
  if (!reducer.shard_group()) return OptimizerState(optimizer);
  const at::NoGradGuard no_grad;
  const auto mine = State(optimizer, reducer);
  LOCKSTEP_RETURN_IF_ERROR(AgreeOnStatus(mine.status(), reducer.shard_group()));
  LOCKSTEP_ASSIGN_OR_RETURN(const auto ranks, GatherValues(*mine, reducer.shard_group()));
  if (ranks.empty()) return Value(ValueDict());
  LOCKSTEP_ASSIGN_OR_RETURN(const Value own, OptimizerState(optimizer));
  ValueDict states;
  ValueList groups;
  int64_t index = 0;
  for (size_t g = 0; g < optimizer.param_groups().size(); ++g) {
    std::map<int64_t, Value> of_group;  // by parameter
    std::map<int64_t, std::map<std::string, std::pair<at::Tensor, at::Tensor>>> wholes;
    for (const Value& rank : ranks) {
      for (const Value& piece : *(*rank.items())[g].items()) {
        const ValueList& parts = *piece.items();
        const int64_t parameter = std::get<int64_t>(parts[0].get());
        Value& state = of_group[parameter];
        if (parts[3].is_none()) continue;
        Merge(reducer.parameters()[parameter].parameter, std::get<int64_t>(parts[1].get()),
              std::get<int64_t>(parts[2].get()), parts[3], wholes[parameter], state);
      }
    }
    Value group = (*own.find("param_groups")->items())[g];
    ValueList indices;
    for (auto& [parameter, state] : of_group) {
      if (!state.is_none()) states.items.emplace_back(index, std::move(state));
      indices.push_back(index++);
    }
    group.set("params", std::move(indices));
    groups.push_back(std::move(group));
  }
  Value whole((ValueDict()));
  whole.set("state", std::move(states));
  whole.set("param_groups", std::move(groups));
  return whole;
}

absl::Status LoadWholeOptimizerState(const Value& whole, torch::optim::Optimizer& optimizer,
                                     const ShardedReducer& reducer, const std::vector<std::vector<size_t>>& members) {
  if (!reducer.shard_group()) return LoadOptimizerState(whole, optimizer);
  const at::NoGradGuard no_grad;
  const Value *const saved = whole.find("state"), *const saved_groups = whole.find("param_groups");
  if (saved == nullptr || saved->dict() == nullptr || saved_groups == nullptr || saved_groups->items() == nullptr ||
      saved_groups->items()->size() != optimizer.param_groups().size()) {
    return absl::InvalidArgumentError("optimizer state: it has other parameter groups than the optimizer");
  }
  std::map<int64_t, const Value*> states;
  for (const auto& [key, entry] : saved->dict()->items) {
    if (const auto* index = std::get_if<int64_t>(&key.get())) states[*index] = &entry;
  }
  const PieceOf pieces = Pieces(reducer);
  ValueDict of_pieces;
  ValueList groups;
  int64_t next = 0;
  for (size_t g = 0; g < optimizer.param_groups().size(); ++g) {
    Value group = (*saved_groups->items())[g];
    const Value* const indices = group.find("params");
    if (indices == nullptr || indices->items() == nullptr || g >= members.size() ||
        indices->items()->size() != members[g].size()) {
      return absl::InvalidArgumentError(absl::StrCat("optimizer state: parameter group ", g,
                                                     " has another number of parameters than the optimizer's"));
    }
    std::map<size_t, const Value*> by_parameter;
    for (size_t i = 0; i < members[g].size(); ++i) {
      const auto* const index = std::get_if<int64_t>(&(*indices->items())[i].get());
      const auto state = index == nullptr ? states.end() : states.find(*index);
      if (state != states.end()) by_parameter[members[g][i]] = state->second;
    }
    ValueList own;
    for (const auto& tensor : optimizer.param_groups()[g].params()) {
      const auto piece = pieces.find(tensor.unsafeGetTensorImpl());
      if (piece == pieces.end()) return NoPiece();
      const auto state = by_parameter.find(piece->second->parameter);
      if (state != by_parameter.end()) {
        LOCKSTEP_ASSIGN_OR_RETURN(Value cut, Cut(*state->second, *piece->second, reducer));
        of_pieces.items.emplace_back(next, std::move(cut));
      }
      own.push_back(next++);
    }
    group.set("params", std::move(own));
    groups.push_back(std::move(group));
  }
  Value state((ValueDict()));
  state.set("state", std::move(of_pieces));
  state.set("param_groups", std::move(groups));
  return LoadOptimizerState(state, optimizer);
}

}  // namespace lockstep
