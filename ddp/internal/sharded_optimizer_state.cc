#include "lockstep/ddp/internal/sharded_optimizer_state.h"

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

#include "lockstep/amp/master_weights.h"
#include "lockstep/base/status_macros.h"
#include "lockstep/checkpoint/gather_values.h"
#include "lockstep/checkpoint/state_dict.h"
#include "lockstep/comm/agree.h"
#include "lockstep/comm/texts.h"

namespace lockstep::internal {
namespace {

using Piece = ShardedReducer::Piece;

/// Of the optimizer's parameters, which are pieces or master weights of them.
class Pieces {
 public:
  Pieces(torch::optim::Optimizer& optimizer, const ShardedReducer& reducer) {
    for (const auto& piece : reducer.shard()) pieces_[piece.tensor.unsafeGetTensorImpl()] = &piece;
    if (auto* const master = MasterWeights::Of(optimizer)) {
      for (size_t i = 0; i < master->copies().size(); ++i) {
        const auto* const copy = master->copies()[i].unsafeGetTensorImpl();
        pieces_[copy] = Find(master->half_parameters()[i]);
        copies_.insert(copy);
      }
    }
  }
  /// Null where there is none.
  const Piece* Find(const at::Tensor& tensor) const {
    const auto found = pieces_.find(tensor.unsafeGetTensorImpl());
    return found == pieces_.end() ? nullptr : found->second;
  }
  bool IsCopy(const at::Tensor& tensor) const { return copies_.count(tensor.unsafeGetTensorImpl()) > 0; }

 private:
  std::map<const c10::TensorImpl*, const Piece*> pieces_;
  std::set<const c10::TensorImpl*> copies_;
};

absl::Status NoPiece() {
  return absl::InvalidArgumentError("optimizer state: a parameter of the optimizer is no piece of the reducer's shard");
}

/// All but the count of steps has a number for each element.
bool IsPerElement(const std::string& key, const Value& value) { return value.tensor() != nullptr && key != "step"; }

/// This rank's: a list, for each group, of [parameter, begin, length, state or None, master weights or None].
absl::StatusOr<Value> MyState(torch::optim::Optimizer& optimizer, const ShardedReducer& reducer) {
  LOCKSTEP_ASSIGN_OR_RETURN(const Value own, OptimizerState(optimizer));
  std::map<int64_t, const Value*> states;
  for (const auto& [index, entry] : own.find("state")->dict()->items) {
    states[std::get<int64_t>(index.get())] = &entry;
  }
  const Pieces pieces(optimizer, reducer);
  ValueList groups;
  int64_t index = 0;
  for (const auto& group : optimizer.param_groups()) {
    ValueList of_group;
    for (const auto& tensor : group.params()) {
      const Piece* const piece = pieces.Find(tensor);
      if (piece == nullptr) return NoPiece();
      const auto state = states.find(index++);
      of_group.emplace_back(ValueList{static_cast<int64_t>(piece->parameter), piece->begin, piece->length,
                                      state == states.end() ? Value() : *state->second,
                                      pieces.IsCopy(tensor) ? Value(tensor.detach()) : Value()});
    }
    groups.emplace_back(std::move(of_group));
  }
  return Value(std::move(groups));
}

/// Memory of a parameter's elements, in the order in which pieces count them, and a tensor of its shape over it.
struct WholeTensor {
  WholeTensor(const at::Tensor& parameter, at::ScalarType dtype)
      : flat(at::zeros({parameter.numel()}, dtype)), shaped(flat.as_strided(parameter.sizes(), parameter.strides())) {}
  at::Tensor flat, shaped;
};

/// What pieces of one parameter come to.
struct WholeParameter {
  explicit WholeParameter(at::Tensor like) : parameter(std::move(like)) {}

  /// `piece`: as MyState lists it.
  void Add(const ValueList& piece) {
    const int64_t begin = std::get<int64_t>(piece[1].get()), length = std::get<int64_t>(piece[2].get());
    const auto put = [&](const std::string& key, const at::Tensor& from) -> const at::Tensor& {
      WholeTensor& whole = tensors.try_emplace(key, parameter, from.scalar_type()).first->second;
      whole.flat.narrow(0, begin, length).copy_(from.reshape({-1}));
      return whole.shaped;
    };
    if (piece[4].tensor() != nullptr) master = put("", *piece[4].tensor());
    if (piece[3].is_none()) return;
    for (const auto& [key, value] : piece[3].dict()->items) {
      const std::string& name = *key.string();
      state.set(name, IsPerElement(name, value) ? Value(put(name, *value.tensor())) : value);
    }
  }

  at::Tensor parameter;
  Value state;        // None: not stepped yet
  at::Tensor master;  // undefined: none
  std::map<std::string, WholeTensor> tensors;
};

/// A piece's elements out of a tensor like its parameter.
absl::StatusOr<at::Tensor> Cut(const at::Tensor& whole, const Piece& piece, const ShardedReducer& reducer,
                               const std::string& what) {
  const NamedParameter& of = reducer.parameters()[piece.parameter];
  if (whole.sizes() != of.parameter.sizes()) {
    return absl::InvalidArgumentError(
        absl::StrCat("optimizer state: ", what, " of ", of.name, " has another shape than the parameter"));
  }
  if (!reducer.shard_group()) return whole;
  WholeTensor copy(of.parameter, whole.scalar_type());
  copy.shaped.copy_(whole);
  return copy.flat.narrow(0, piece.begin, piece.length).clone();
}

absl::StatusOr<Value> CutState(const Value& whole, const Piece& piece, const ShardedReducer& reducer) {
  if (whole.dict() == nullptr) return absl::InvalidArgumentError("optimizer state: an entry that is no dict");
  Value state((ValueDict()));
  for (const auto& [key, value] : whole.dict()->items) {
    if (key.string() == nullptr) return absl::InvalidArgumentError("optimizer state: a key that is no string");
    if (!IsPerElement(*key.string(), value)) {
      state.set(*key.string(), value);
      continue;
    }
    LOCKSTEP_ASSIGN_OR_RETURN(at::Tensor cut,
                              Cut(*value.tensor(), piece, reducer, absl::StrCat("'", *key.string(), "'")));
    state.set(*key.string(), std::move(cut));
  }
  return state;
}

/// This rank's part of a list of whole master weights.
absl::Status LoadMasterWeights(const Value* whole, torch::optim::Optimizer& optimizer, const ShardedReducer& reducer,
                               const std::vector<std::vector<size_t>>& members) {
  auto* const master = MasterWeights::Of(optimizer);
  if (master == nullptr) return absl::OkStatus();
  if (whole == nullptr) {
    master->SetCopies(master->half_parameters());
    return absl::OkStatus();
  }
  std::map<size_t, const at::Tensor*> by_parameter;
  size_t next = 0;
  for (const auto& group : members) {
    for (const size_t parameter : group) {
      const auto dtype = reducer.parameters()[parameter].parameter.scalar_type();
      if (dtype != at::kHalf && dtype != at::kBFloat16) continue;
      const bool there = whole->items() != nullptr && next < whole->items()->size();
      by_parameter[parameter] = there ? (*whole->items())[next].tensor() : nullptr;
      ++next;
    }
  }
  if (whole->items() == nullptr || whole->items()->size() != next) {
    return absl::InvalidArgumentError(absl::StrCat("master weights: it must be a list of ", next, " tensors"));
  }
  const Pieces pieces(optimizer, reducer);
  std::vector<at::Tensor> copies;
  for (const at::Tensor& half : master->half_parameters()) {
    const Piece* const piece = pieces.Find(half);
    const at::Tensor* const of_parameter = piece == nullptr ? nullptr : by_parameter[piece->parameter];
    if (of_parameter == nullptr) return NoPiece();
    LOCKSTEP_ASSIGN_OR_RETURN(at::Tensor cut, Cut(*of_parameter, *piece, reducer, "the master weight"));
    copies.push_back(std::move(cut));
  }
  master->SetCopies(copies);
  return absl::OkStatus();
}

/// This rank's part of a whole state, as LoadOptimizerState takes it.
absl::StatusOr<Value> CutWhole(const Value& whole, torch::optim::Optimizer& optimizer, const ShardedReducer& reducer,
                               const std::vector<std::vector<size_t>>& members) {
  const Value *const saved = whole.find("state"), *const saved_groups = whole.find("param_groups");
  if (saved == nullptr || saved->dict() == nullptr || saved_groups == nullptr || saved_groups->items() == nullptr ||
      saved_groups->items()->size() != optimizer.param_groups().size()) {
    return absl::InvalidArgumentError("optimizer state: it has other parameter groups than the optimizer");
  }
  std::map<int64_t, const Value*> states;
  for (const auto& [key, entry] : saved->dict()->items) {
    if (const auto* index = std::get_if<int64_t>(&key.get())) states[*index] = &entry;
  }
  const Pieces pieces(optimizer, reducer);
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
      const Piece* const piece = pieces.Find(tensor);
      if (piece == nullptr) return NoPiece();
      const auto state = by_parameter.find(piece->parameter);
      if (state != by_parameter.end()) {
        LOCKSTEP_ASSIGN_OR_RETURN(Value cut, CutState(*state->second, *piece, reducer));
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
  return state;
}

}  // namespace

std::vector<std::vector<size_t>> GroupMembers(torch::optim::Optimizer& optimizer, const ShardedReducer& reducer) {
  const Pieces pieces(optimizer, reducer);
  std::string mine;
  for (size_t g = 0; g < optimizer.param_groups().size(); ++g) {
    for (const auto& tensor : optimizer.param_groups()[g].params()) {
      if (const Piece* const piece = pieces.Find(tensor)) absl::StrAppend(&mine, g, " ", piece->parameter, " ");
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

absl::StatusOr<ShardedState::Whole> WholeOptimizerState(torch::optim::Optimizer& optimizer,
                                                        const ShardedReducer& reducer) {
  const at::NoGradGuard no_grad;
  if (!reducer.shard_group()) {  // the pieces are the parameters
    ShardedState::Whole whole;
    LOCKSTEP_ASSIGN_OR_RETURN(whole.state, OptimizerState(optimizer));
    if (const auto* const master = MasterWeights::Of(optimizer)) {
      whole.master_weights = ValueList(master->copies().begin(), master->copies().end());
    }
    return whole;
  }
  const auto mine = MyState(optimizer, reducer);
  LOCKSTEP_RETURN_IF_ERROR(AgreeOnStatus(mine.status(), reducer.shard_group()));
  LOCKSTEP_ASSIGN_OR_RETURN(const auto ranks, GatherValues(*mine, reducer.shard_group()));
  ShardedState::Whole whole;
  if (ranks.empty()) return whole;
  LOCKSTEP_ASSIGN_OR_RETURN(const Value own, OptimizerState(optimizer));
  ValueDict states;
  ValueList groups, master_weights;
  int64_t index = 0;
  for (size_t g = 0; g < optimizer.param_groups().size(); ++g) {
    std::map<int64_t, WholeParameter> of_group;
    for (const Value& rank : ranks) {
      for (const Value& piece : *(*rank.items())[g].items()) {
        const auto parameter = std::get<int64_t>((*piece.items())[0].get());
        of_group.try_emplace(parameter, reducer.parameters()[parameter].parameter).first->second.Add(*piece.items());
      }
    }
    Value group = (*own.find("param_groups")->items())[g];
    ValueList indices;
    for (auto& [parameter, one] : of_group) {
      if (!one.state.is_none()) states.items.emplace_back(index, std::move(one.state));
      if (one.master.defined()) master_weights.emplace_back(std::move(one.master));
      indices.push_back(index++);
    }
    group.set("params", std::move(indices));
    groups.push_back(std::move(group));
  }
  whole.state.set("state", std::move(states));
  whole.state.set("param_groups", std::move(groups));
  if (MasterWeights::Of(optimizer) != nullptr) whole.master_weights = std::move(master_weights);
  return whole;
}

absl::Status LoadWholeOptimizerState(const Value& whole, const Value* master_weights,
                                     torch::optim::Optimizer& optimizer, const ShardedReducer& reducer,
                                     const std::vector<std::vector<size_t>>& members) {
  const at::NoGradGuard no_grad;
  if (!reducer.shard_group()) {
    LOCKSTEP_RETURN_IF_ERROR(LoadOptimizerState(whole, optimizer));
    return LoadMasterWeights(master_weights, optimizer, reducer, members);
  }
  LOCKSTEP_ASSIGN_OR_RETURN(const Value state, CutWhole(whole, optimizer, reducer, members));
  LOCKSTEP_RETURN_IF_ERROR(LoadOptimizerState(state, optimizer));
  return LoadMasterWeights(master_weights, optimizer, reducer, members);
}

}  // namespace lockstep::internal
