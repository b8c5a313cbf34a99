#pragma once

#include <ATen/core/Tensor.h>
#include <torch/optim/optimizer.h>

#include <memory>
#include <vector>

namespace lockstep::internal {

/// The options of an optimizer's groups at one moment.
class GroupOptions {
 public:
  explicit GroupOptions(const torch::optim::Optimizer& optimizer);

  /// Of `optimizer`'s groups now.
  static at::Tensor Rates(const torch::optim::Optimizer& optimizer);
  /// Throws when the groups of `optimizer` differ in anything else; of options of a type that isn't LibTorch's own only
  /// their number is looked at.
  void CheckOnlyRatesDiffer(const torch::optim::Optimizer& optimizer) const;

 private:
  struct Group {
    std::unique_ptr<torch::optim::OptimizerOptions> options;
    size_t parameters;
  };
  std::vector<Group> groups_;
};

}  // namespace lockstep::internal
