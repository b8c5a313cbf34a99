#include "lockstep/parallel/internal/parameter_server_model.h"

#include <absl/strings/str_cat.h>
#include <absl/strings/str_join.h>
#include <absl/strings/str_split.h>
#include <c10/util/Type.h>

#include <algorithm>
#include <map>
#include <numeric>
#include <set>
#include <typeinfo>
#include <utility>

#include "lockstep/base/status_macros.h"

namespace lockstep::internal {
namespace {

using Kind = ServedTensor::Kind;

std::vector<NamedParameter> Trained(const std::vector<ServedTensor>& tensors) {
  std::vector<NamedParameter> trained;
  for (const auto& served : tensors) {
    if (served.kind == Kind::kTrained) trained.push_back({served.name, served.tensor});
  }
  return trained;
}

/// Calls `visit(group, index among the tensors)` for each parameter, in the optimizer's order.
template <typename F>
absl::Status ForEachParameter(const torch::optim::Optimizer& optimizer, const std::vector<ServedTensor>& tensors,
                              const F& visit) {
  std::map<const c10::TensorImpl*, size_t> indices;
  for (size_t i = 0; i < tensors.size(); ++i) indices[tensors[i].tensor.unsafeGetTensorImpl()] = i;
  size_t count = 0;
  for (size_t g = 0; g < optimizer.param_groups().size(); ++g) {
    for (const auto& parameter : optimizer.param_groups()[g].params()) {
      const auto found = indices.find(parameter.unsafeGetTensorImpl());
      if (found == indices.end()) {
        return absl::InvalidArgumentError(
            "parameter server: the factory's optimizer has a parameter that it was not given (a copy, perhaps)");
      }
      visit(g, found->second);
      ++count;
    }
  }
  const size_t wanted = Trained(tensors).size();
  if (count == wanted) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("parameter server: the factory's optimizer has ", count,
                                                 " parameters of the ", wanted, " that it was given; take all"));
}

std::string Describe(const ServedTensor& served) {
  return absl::StrCat(c10::toString(served.tensor.scalar_type()), " [", absl::StrJoin(served.tensor.sizes(), ", "), "]",
                      served.kind == Kind::kFrozen    ? ", frozen"
                      : served.kind == Kind::kTrained ? absl::StrCat(", parameter group ", served.group)
                                                      : "");
}

/// Lines of "what\thow it is".
std::vector<std::pair<std::string, std::string>> Lines(std::string_view description) {
  std::vector<std::pair<std::string, std::string>> lines;
  const std::string text(description);
  for (const auto line : absl::StrSplit(text, '\n', absl::SkipEmpty())) {
    lines.push_back(absl::StrSplit(line, absl::MaxSplits('\t', 1)));
  }
  return lines;
}

}  // namespace

absl::StatusOr<ServedModel> ServedModel::Make(torch::nn::Module& module, const OptimizerFactory& make_optimizer) {
  ServedModel model;
  std::set<const c10::TensorImpl*> seen;
  const auto add = [&](const std::string& name, const at::Tensor& tensor, Kind kind) {
    if (tensor.defined() && seen.insert(tensor.unsafeGetTensorImpl()).second) {
      model.tensors_.push_back({name, tensor, kind});
    }
  };
  for (const auto& item : module.named_parameters()) {
    add(item.key(), item.value(), item.value().requires_grad() ? Kind::kTrained : Kind::kFrozen);
  }
  for (const auto& item : module.named_buffers()) add(item.key(), item.value(), Kind::kBuffer);
  const auto trained = Trained(model.tensors_);
  if (trained.empty())
    return absl::InvalidArgumentError("parameter server: no parameter of the module needs a gradient");
  model.optimizer_ = make_optimizer(trained);
  if (!model.optimizer_) return absl::InvalidArgumentError("parameter server: the factory has made no optimizer");
  LOCKSTEP_RETURN_IF_ERROR(ForEachParameter(*model.optimizer_, model.tensors_, [&](size_t group, size_t i) {
    model.tensors_[i].group = static_cast<int>(group);
  }));
  return model;
}

std::vector<std::vector<std::string>> ServedModel::GroupNames() const {
  std::vector<std::vector<std::string>> names(optimizer_->param_groups().size());
  // Make has gone through the same without an error.
  ForEachParameter(*optimizer_, tensors_, [&](size_t group, size_t i) {
    names[group].push_back(tensors_[i].name);
  }).IgnoreError();
  return names;
}

std::vector<std::vector<size_t>> ServedModel::Shards(const ParameterServerLayout& layout) const {
  std::vector<size_t> all(tensors_.size());
  std::iota(all.begin(), all.end(), 0);
  if (layout.placement == ParameterServerLayout::Placement::kReplicated) {
    return std::vector<std::vector<size_t>>(layout.servers, all);
  }
  // The largest first, each to the server that has least (Graham, 1969).
  std::stable_sort(all.begin(), all.end(),
                   [this](size_t a, size_t b) { return tensors_[a].tensor.nbytes() > tensors_[b].tensor.nbytes(); });
  std::vector<std::vector<size_t>> shards(layout.servers);
  std::vector<size_t> bytes(layout.servers, 0);
  for (const size_t i : all) {
    const size_t least = std::min_element(bytes.begin(), bytes.end()) - bytes.begin();
    shards[least].push_back(i);
    bytes[least] += tensors_[i].tensor.nbytes();
  }
  for (auto& shard : shards) std::sort(shard.begin(), shard.end());
  return shards;
}

std::vector<ServedTensor> ServedModel::Pick(const std::vector<size_t>& indices) const {
  std::vector<ServedTensor> picked;
  for (const size_t i : indices) picked.push_back(tensors_[i]);
  return picked;
}

std::string ServedModel::Describe(const ParameterServerLayout& layout) const {
  const auto& optimizer = *optimizer_;
  std::string text = absl::StrCat("the layout\t", layout.ToString(), "\nthe optimizer\t",
                                  c10::demangle(typeid(optimizer).name()), "\n");
  for (const auto& served : tensors_) {
    absl::StrAppend(&text, served.kind == Kind::kBuffer ? "buffer '" : "parameter '", served.name, "'\t",
                    internal::Describe(served), "\n");
  }
  return text;
}

absl::Status CompareDescriptions(std::string_view mine, const std::string& my_name, std::string_view theirs,
                                 const std::string& their_name) {
  const auto my_lines = Lines(mine), their_lines = Lines(theirs);
  const std::map<std::string, std::string> mine_by_name(my_lines.begin(), my_lines.end()),
      theirs_by_name(their_lines.begin(), their_lines.end());
  const auto differ = [](const std::string& what) {
    return absl::InvalidArgumentError(absl::StrCat("parameter server: ", what));
  };
  for (const auto& [what, how] : my_lines) {
    const auto found = theirs_by_name.find(what);
    if (found == theirs_by_name.end()) return differ(absl::StrCat(what, " is on ", my_name, ", not on ", their_name));
    if (found->second != how) {
      return differ(absl::StrCat(what, " differs: ", how, " on ", my_name, ", ", found->second, " on ", their_name));
    }
  }
  for (const auto& [what, how] : their_lines) {
    if (mine_by_name.count(what) == 0) return differ(absl::StrCat(what, " is on ", their_name, ", not on ", my_name));
  }
  const auto other = std::mismatch(my_lines.begin(), my_lines.end(), their_lines.begin(), their_lines.end());
  if (other.first == my_lines.end()) return absl::OkStatus();
  return differ(absl::StrCat("the order differs: ", other.first->first, " on ", my_name, " stands where ",
                             other.second->first, " does on ", their_name));
}

absl::StatusOr<PartOptimizer> MakePartOptimizer(const std::vector<ServedTensor>& tensors,
                                                const OptimizerFactory& make_optimizer) {
  PartOptimizer part;
  const auto trained = Trained(tensors);
  if (trained.empty()) return part;
  part.optimizer = make_optimizer(trained);
  part.groups.assign(part.optimizer->param_groups().size(), -1);
  bool mixed = false;
  LOCKSTEP_RETURN_IF_ERROR(ForEachParameter(*part.optimizer, tensors, [&](size_t group, size_t i) {
    int& of_whole = part.groups[group];
    if (of_whole < 0) of_whole = tensors[i].group;
    mixed |= of_whole != tensors[i].group;
    part.names.push_back(tensors[i].name);
  }));
  if (!mixed) return part;
  return absl::InvalidArgumentError(
      "parameter server: the factory puts parameters into one group that are in several when it is given all of the "
      "model's; group them by name");
}

}  // namespace lockstep::internal
