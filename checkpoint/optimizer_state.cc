#include <absl/status/status.h>
#include <absl/strings/str_cat.h>
#include <ATen/Functions.h>
#include <c10/core/GradMode.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/sgd.h>

#include <map>
#include <type_traits>

#include "lockstep/base/status_macros.h"
#include "lockstep/checkpoint/state_dict.h"

namespace lockstep {
namespace {

using torch::optim::AdamOptions;
using torch::optim::AdamParamState;
using torch::optim::AdamWOptions;
using torch::optim::AdamWParamState;
using torch::optim::Optimizer;
using torch::optim::SGDOptions;
using torch::optim::SGDParamState;

absl::StatusOr<double> Number(const Value& dict, const char* key) {
  const Value* value = dict.find(key);
  if (value == nullptr) return absl::InvalidArgumentError(absl::StrCat("optimizer state: '", key, "' is missing"));
  return value->number();
}

// ---- options, both ways. Python's keys that LibTorch has no option for get Python's defaults.

void SetCommon(Value& group) {
  for (const char* key : {"maximize", "differentiable"}) group.set(key, false);
  for (const char* key : {"foreach", "fused"}) group.set(key, Value());
}

void PutOptions(const SGDOptions& o, Value& group) {
  group.set("lr", o.lr());
  group.set("momentum", o.momentum());
  group.set("dampening", o.dampening());
  group.set("weight_decay", o.weight_decay());
  group.set("nesterov", o.nesterov());
  SetCommon(group);
}

/// What Python may have switched on and LibTorch has not.
absl::Status CheckMaximize(const Value& group) {
  const Value* maximize = group.find("maximize");
  if (maximize == nullptr || maximize->is_none() || !maximize->number().ok() || *maximize->number() == 0) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError("optimizer state: 'maximize' is on, which LibTorch's optimizers can't do");
}

absl::Status CheckDecoupled(const Value& group, bool wanted) {
  const Value* decoupled = group.find("decoupled_weight_decay");
  if (decoupled == nullptr || !decoupled->number().ok() || (*decoupled->number() != 0) == wanted)
    return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("optimizer state: it is of ", wanted ? "Adam, not AdamW" : "AdamW, not Adam"));
}

absl::Status GetOptions(const Value& group, SGDOptions& o) {
  LOCKSTEP_RETURN_IF_ERROR(CheckMaximize(group));
  LOCKSTEP_ASSIGN_OR_RETURN(const double lr, Number(group, "lr"));
  LOCKSTEP_ASSIGN_OR_RETURN(const double momentum, Number(group, "momentum"));
  LOCKSTEP_ASSIGN_OR_RETURN(const double dampening, Number(group, "dampening"));
  LOCKSTEP_ASSIGN_OR_RETURN(const double weight_decay, Number(group, "weight_decay"));
  LOCKSTEP_ASSIGN_OR_RETURN(const double nesterov, Number(group, "nesterov"));
  o.lr(lr).momentum(momentum).dampening(dampening).weight_decay(weight_decay).nesterov(nesterov != 0);
  return absl::OkStatus();
}

template <typename Options>  // Adam and AdamW have the same ones
void PutAdamOptions(const Options& o, bool decoupled, Value& group) {
  group.set("lr", o.lr());
  group.set("betas", ValueTuple{{std::get<0>(o.betas()), std::get<1>(o.betas())}});
  group.set("eps", o.eps());
  group.set("weight_decay", o.weight_decay());
  group.set("amsgrad", o.amsgrad());
  SetCommon(group);
  group.set("capturable", false);
  group.set("decoupled_weight_decay", decoupled);
}
void PutOptions(const AdamOptions& o, Value& group) { PutAdamOptions(o, false, group); }
void PutOptions(const AdamWOptions& o, Value& group) { PutAdamOptions(o, true, group); }

template <typename Options>
absl::Status GetOptions(const Value& group, Options& o) {
  LOCKSTEP_RETURN_IF_ERROR(CheckMaximize(group));
  LOCKSTEP_RETURN_IF_ERROR(CheckDecoupled(group, std::is_same_v<Options, AdamWOptions>));
  LOCKSTEP_ASSIGN_OR_RETURN(const double lr, Number(group, "lr"));
  LOCKSTEP_ASSIGN_OR_RETURN(const double eps, Number(group, "eps"));
  LOCKSTEP_ASSIGN_OR_RETURN(const double weight_decay, Number(group, "weight_decay"));
  LOCKSTEP_ASSIGN_OR_RETURN(const double amsgrad, Number(group, "amsgrad"));
  const Value* betas = group.find("betas");
  if (betas == nullptr || betas->items() == nullptr || betas->items()->size() != 2) {
    return absl::InvalidArgumentError("optimizer state: 'betas' is no pair");
  }
  LOCKSTEP_ASSIGN_OR_RETURN(const double beta1, (*betas->items())[0].number());
  LOCKSTEP_ASSIGN_OR_RETURN(const double beta2, (*betas->items())[1].number());
  o.lr(lr).betas({beta1, beta2}).eps(eps).weight_decay(weight_decay).amsgrad(amsgrad != 0);
  return absl::OkStatus();
}

// ---- a parameter's state, both ways

void PutState(const SGDParamState& s, Value& entry) {
  entry.set("momentum_buffer", s.momentum_buffer().defined() ? Value(s.momentum_buffer()) : Value());
}
template <typename State>  // AdamParamState and AdamWParamState
void PutState(const State& s, Value& entry) {
  entry.set("step", at::scalar_tensor(static_cast<double>(s.step()), at::kFloat));
  entry.set("exp_avg", s.exp_avg());
  entry.set("exp_avg_sq", s.exp_avg_sq());
  if (s.max_exp_avg_sq().defined()) entry.set("max_exp_avg_sq", s.max_exp_avg_sq());
}

/// A copy, shaped and placed like the parameter; undefined for None or an absent optional entry.
absl::Status GetTensor(const Value& entry, const char* key, const at::Tensor& like, bool required, at::Tensor& into) {
  const Value* saved = entry.find(key);
  if (saved == nullptr || saved->is_none()) {
    if (required) return absl::InvalidArgumentError(absl::StrCat("optimizer state: '", key, "' is missing"));
    return absl::OkStatus();
  }
  if (saved->tensor() == nullptr || saved->tensor()->sizes() != like.sizes()) {
    return absl::InvalidArgumentError(absl::StrCat("optimizer state: '", key, "' does not have its parameter's shape"));
  }
  into = at::empty_like(like.detach()).copy_(*saved->tensor());
  return absl::OkStatus();
}

absl::Status GetState(const Value& entry, const at::Tensor& parameter, SGDParamState& s) {
  at::Tensor buffer;
  LOCKSTEP_RETURN_IF_ERROR(GetTensor(entry, "momentum_buffer", parameter, false, buffer));
  s.momentum_buffer(buffer);
  return absl::OkStatus();
}
template <typename State>
absl::Status GetState(const Value& entry, const at::Tensor& parameter, State& s) {
  LOCKSTEP_ASSIGN_OR_RETURN(const double step, Number(entry, "step"));
  at::Tensor average, square, largest;
  LOCKSTEP_RETURN_IF_ERROR(GetTensor(entry, "exp_avg", parameter, true, average));
  LOCKSTEP_RETURN_IF_ERROR(GetTensor(entry, "exp_avg_sq", parameter, true, square));
  LOCKSTEP_RETURN_IF_ERROR(GetTensor(entry, "max_exp_avg_sq", parameter, false, largest));
  s.step(static_cast<int64_t>(step));
  s.exp_avg(average);
  s.exp_avg_sq(square);
  s.max_exp_avg_sq(largest);
  return absl::OkStatus();
}

template <typename Options, typename State>
Value Save(const Optimizer& optimizer) {
  ValueDict states;
  ValueList groups;
  int64_t index = 0;
  for (const auto& group : optimizer.param_groups()) {
    Value saved((ValueDict()));
    PutOptions(static_cast<const Options&>(group.options()), saved);
    ValueList indices;
    for (const auto& parameter : group.params()) {
      const auto found = optimizer.state().find(parameter.unsafeGetTensorImpl());
      if (found != optimizer.state().end()) {
        Value entry((ValueDict()));
        PutState(static_cast<const State&>(*found->second), entry);
        states.items.emplace_back(index, std::move(entry));
      }
      indices.push_back(index++);
    }
    saved.set("params", std::move(indices));
    groups.push_back(std::move(saved));
  }
  Value result((ValueDict()));
  result.set("state", std::move(states));
  result.set("param_groups", std::move(groups));
  return result;
}

template <typename Options, typename State>
absl::Status Load(const Value& state, Optimizer& optimizer) {
  const Value* states = state.find("state");
  const Value* groups = state.find("param_groups");
  if (states == nullptr || states->dict() == nullptr || groups == nullptr || groups->items() == nullptr) {
    return absl::InvalidArgumentError("optimizer state: 'state' or 'param_groups' is missing");
  }
  if (groups->items()->size() != optimizer.param_groups().size()) {
    return absl::InvalidArgumentError(absl::StrCat("optimizer state: it has ", groups->items()->size(),
                                                   " parameter groups, the optimizer ",
                                                   optimizer.param_groups().size()));
  }
  std::map<int64_t, const Value*> by_index;
  for (const auto& [key, entry] : states->dict()->items) {
    if (const auto* index = std::get_if<int64_t>(&key.get())) by_index[*index] = &entry;
  }
  // Everything is read before anything is changed.
  std::vector<Options> new_options;
  std::vector<std::pair<void*, std::unique_ptr<State>>> new_states;
  for (size_t g = 0; g < optimizer.param_groups().size(); ++g) {
    const Value& saved = (*groups->items())[g];
    auto& group = optimizer.param_groups()[g];
    const Value* indices = saved.find("params");
    if (indices == nullptr || indices->items() == nullptr || indices->items()->size() != group.params().size()) {
      return absl::InvalidArgumentError(absl::StrCat("optimizer state: parameter group ", g,
                                                     " has another number of parameters than the optimizer's"));
    }
    new_options.push_back(static_cast<const Options&>(group.options()));
    LOCKSTEP_RETURN_IF_ERROR(GetOptions(saved, new_options.back()));
    for (size_t i = 0; i < group.params().size(); ++i) {
      const auto* index = std::get_if<int64_t>(&(*indices->items())[i].get());
      const auto entry = index == nullptr ? by_index.end() : by_index.find(*index);
      if (entry == by_index.end()) continue;  // not stepped yet
      auto fresh = std::make_unique<State>();
      LOCKSTEP_RETURN_IF_ERROR(GetState(*entry->second, group.params()[i], *fresh));
      new_states.emplace_back(group.params()[i].unsafeGetTensorImpl(), std::move(fresh));
    }
  }
  for (size_t g = 0; g < new_options.size(); ++g) {
    static_cast<Options&>(optimizer.param_groups()[g].options()) = new_options[g];
  }
  optimizer.state().clear();
  for (auto& [key, fresh] : new_states) optimizer.state()[key] = std::move(fresh);
  return absl::OkStatus();
}

const char kUnknown[] = "optimizer state: only SGD, Adam and AdamW can be saved";

}  // namespace

absl::StatusOr<Value> OptimizerState(const Optimizer& optimizer) {
  if (dynamic_cast<const torch::optim::SGD*>(&optimizer) != nullptr) return Save<SGDOptions, SGDParamState>(optimizer);
  if (dynamic_cast<const torch::optim::Adam*>(&optimizer) != nullptr)
    return Save<AdamOptions, AdamParamState>(optimizer);
  if (dynamic_cast<const torch::optim::AdamW*>(&optimizer) != nullptr) {
    return Save<AdamWOptions, AdamWParamState>(optimizer);
  }
  return absl::InvalidArgumentError(kUnknown);
}

absl::Status LoadOptimizerState(const Value& state, Optimizer& optimizer) {
  const at::NoGradGuard no_grad;
  if (dynamic_cast<torch::optim::SGD*>(&optimizer) != nullptr) return Load<SGDOptions, SGDParamState>(state, optimizer);
  if (dynamic_cast<torch::optim::Adam*>(&optimizer) != nullptr)
    return Load<AdamOptions, AdamParamState>(state, optimizer);
  if (dynamic_cast<torch::optim::AdamW*>(&optimizer) != nullptr)
    return Load<AdamWOptions, AdamWParamState>(state, optimizer);
  return absl::InvalidArgumentError(kUnknown);
}

}  // namespace lockstep
