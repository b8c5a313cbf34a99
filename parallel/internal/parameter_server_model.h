#pragma once

#include <absl/status/status.h>
#include <absl/status/statusor.h>
#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>
#include <torch/optim/optimizer.h>

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/parallel/parameter_server_layout.h"
#include "lockstep/parallel/parameter_server_optimizer_factory.h"

namespace lockstep::internal {

/// A tensor that servers hold for workers: the module's own.
struct ServedTensor {
  enum class Kind { kTrained, kFrozen, kBuffer };
  std::string name;
  at::Tensor tensor;
  Kind kind;
  int group = -1;  ///< Of the optimizer over all parameters; -1 where there is no gradient.
};

/// A module and its optimizer, as servers and workers see it alike.
class ServedModel {
 public:
  /// InvalidArgument for a factory whose optimizer isn't over the parameters that it was given.
  static absl::StatusOr<ServedModel> Make(torch::nn::Module& module, const OptimizerFactory& make_optimizer);

  /// Each once, also where it has several names.
  const std::vector<ServedTensor>& tensors() const { return tensors_; }
  /// Over all trained parameters, to know its groups by; null without any.
  torch::optim::Optimizer* optimizer() const { return optimizer_.get(); }
  /// The names of the optimizer's parameters, by group.
  std::vector<std::vector<std::string>> GroupNames() const;

  /// Which tensors, by index, each server has.
  std::vector<std::vector<size_t>> Shards(const ParameterServerLayout& layout) const;
  std::vector<ServedTensor> Pick(const std::vector<size_t>& indices) const;

  /// Everything in which ranks must agree, a line each.
  std::string Describe(const ParameterServerLayout& layout) const;

 private:
  std::vector<ServedTensor> tensors_;
  std::unique_ptr<torch::optim::Optimizer> optimizer_;
};

/// Two ranks' descriptions. InvalidArgument that names the first thing in which they differ, and the ranks.
absl::Status CompareDescriptions(std::string_view mine, const std::string& my_name, std::string_view theirs,
                                 const std::string& their_name);

/// An optimizer over the trained ones of these, and which group of the whole model's each of its groups is; null
/// without any. InvalidArgument when the factory groups them differently than within the whole.
struct PartOptimizer {
  std::unique_ptr<torch::optim::Optimizer> optimizer;
  std::vector<int> groups;
  std::vector<std::string> names;  ///< Of its parameters, in its order.
};
absl::StatusOr<PartOptimizer> MakePartOptimizer(const std::vector<ServedTensor>& tensors,
                                                const OptimizerFactory& make_optimizer);

}  // namespace lockstep::internal
