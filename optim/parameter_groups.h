#pragma once

#include <absl/status/statusor.h>
#include <torch/nn/module.h>
#include <torch/optim/optimizer.h>

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace lockstep {

/// What a part of the parameters has that the rest has not.
struct ParameterGroupRule {
  std::string pattern;  ///< ECMAScript regular expression, found anywhere in a parameter's name: "^backbone\\."
  std::optional<double> lr, weight_decay;
};

struct ParameterGroupsOptions {
  /// Whether biases and norms decay too: parameters that are called bias, or are of a module whose class has "Norm" in
  /// its name, or have at most one dimension (scales, lone numbers). A rule's weight decay counts for them in any case.
  bool decay_biases_and_norms = false;
  std::vector<ParameterGroupRule> rules;  ///< The first that fits counts.
};

/// Parameters of one group, in the module's order.
struct ParameterGroup {
  std::vector<std::string> names;
  std::vector<at::Tensor> parameters;
  bool decays = true;
  std::optional<double> lr, weight_decay;  ///< As the rule says.
};

/// The module's parameters, each once, also frozen ones: first those that decay, then those that don't, of no rule;
/// then the same of each rule; empty groups are left out. InvalidArgument for a pattern that is no regular expression
/// or fits no parameter, and for a negative rate or decay.
absl::StatusOr<std::vector<ParameterGroup>> GroupParameters(const torch::nn::Module& module,
                                                            const ParameterGroupsOptions& options = {});

/// The same as an optimizer of LibTorch takes them; `Options` are its own, such as torch::optim::AdamWOptions:
///
///     const auto defaults = torch::optim::AdamWOptions(1e-3).weight_decay(0.05);
///     ParameterGroupsOptions options;
///     options.rules = {{"^head", /*lr=*/1e-2}};
///     auto groups = OptimizerGroups(*model, defaults, options);
///     if (!groups.ok()) return groups.status();
///     torch::optim::AdamW optimizer(*groups, defaults);
template <typename Options>
absl::StatusOr<std::vector<torch::optim::OptimizerParamGroup>> OptimizerGroups(
    const torch::nn::Module& module, const Options& defaults, const ParameterGroupsOptions& options = {}) {
  auto groups = GroupParameters(module, options);
  if (!groups.ok()) return groups.status();
  std::vector<torch::optim::OptimizerParamGroup> result;
  for (auto& group : *groups) {
    auto own = std::make_unique<Options>(defaults);
    if (group.lr) own->lr(*group.lr);
    if (!group.decays) own->weight_decay(0);
    if (group.weight_decay) own->weight_decay(*group.weight_decay);
    result.emplace_back(std::move(group.parameters), std::move(own));
  }
  return result;
}

}  // namespace lockstep
