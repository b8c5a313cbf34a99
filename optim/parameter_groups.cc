#include "lockstep/optim/parameter_groups.h"

#include <absl/strings/str_cat.h>

#include <functional>
#include <regex>
#include <set>

namespace lockstep {
namespace {

/// "bias", "bias_ih_l0", "in_proj_bias", of the last part of a name.
bool IsBias(const std::string& name) {
  static const std::regex bias("(^|_)bias(_|$)");
  return std::regex_search(name, bias);
}

/// Of "a::b::Name<c::D>" the "Name".
std::string ClassName(const torch::nn::Module& module) {
  std::string name = module.name();
  name = name.substr(0, name.find('<'));
  const size_t last = name.rfind("::");
  return last == std::string::npos ? name : name.substr(last + 2);
}

absl::StatusOr<std::vector<std::regex>> Compile(const std::vector<ParameterGroupRule>& rules) {
  std::vector<std::regex> patterns;
  for (const auto& rule : rules) {
    if ((rule.lr && !(*rule.lr >= 0)) || (rule.weight_decay && !(*rule.weight_decay >= 0))) {
      return absl::InvalidArgumentError(
          absl::StrCat("parameter group '", rule.pattern, "': learning rate and weight decay must be at least 0"));
    }
    try {
      patterns.emplace_back(rule.pattern);
    } catch (const std::regex_error& e) {
      return absl::InvalidArgumentError(
          absl::StrCat("parameter group '", rule.pattern, "': no regular expression: ", e.what()));
    }
  }
  return patterns;
}

}  // namespace

absl::StatusOr<std::vector<ParameterGroup>> GroupParameters(const torch::nn::Module& module,
                                                            const ParameterGroupsOptions& options) {
  auto patterns = Compile(options.rules);
  if (!patterns.ok()) return patterns.status();
  // For no rule and for each: with decay, without.
  std::vector<ParameterGroup> groups(2 * (options.rules.size() + 1));
  for (size_t i = 0; i < groups.size(); ++i) {
    groups[i].decays = i % 2 == 0;
    if (i < 2) continue;
    groups[i].lr = options.rules[i / 2 - 1].lr;
    groups[i].weight_decay = options.rules[i / 2 - 1].weight_decay;
  }
  std::set<const c10::TensorImpl*> seen;
  std::set<size_t> used;
  const std::function<void(const torch::nn::Module&, const std::string&)> visit = [&](const torch::nn::Module& part,
                                                                                      const std::string& prefix) {
    const bool norm = ClassName(part).find("Norm") != std::string::npos;
    for (const auto& item : part.named_parameters(/*recurse=*/false)) {
      const at::Tensor& parameter = item.value();
      if (!parameter.defined() || !seen.insert(parameter.unsafeGetTensorImpl()).second) continue;
      const std::string name = prefix + item.key();
      size_t rule = 0;
      while (rule < patterns->size() && !std::regex_search(name, (*patterns)[rule])) ++rule;
      const size_t place = rule == patterns->size() ? 0 : rule + 1;
      used.insert(place);
      const bool decays = options.decay_biases_and_norms || !(norm || parameter.dim() <= 1 || IsBias(item.key()));
      ParameterGroup& group = groups[2 * place + (decays ? 0 : 1)];
      group.names.push_back(name);
      group.parameters.push_back(parameter);
    }
    for (const auto& child : part.named_children()) visit(*child.value(), prefix + child.key() + ".");
  };
  visit(module, "");
  for (size_t rule = 0; rule < options.rules.size(); ++rule) {
    if (used.count(rule + 1) == 0) {
      return absl::InvalidArgumentError(absl::StrCat("parameter group '", options.rules[rule].pattern,
                                                     "': matches no parameter, or only such as an earlier rule took"));
    }
  }
  std::vector<ParameterGroup> filled;
  for (auto& group : groups) {
    if (!group.parameters.empty()) filled.push_back(std::move(group));
  }
  return filled;
}

}  // namespace lockstep
