#include "lockstep/parallel/internal/parameter_server_options.h"

#include <ATen/Functions.h>
#include <c10/util/Exception.h>
#include <torch/optim/adagrad.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/rmsprop.h>
#include <torch/optim/sgd.h>

#include <type_traits>

namespace lockstep::internal {
namespace {

template <typename... Types>
bool Equal(const torch::optim::OptimizerOptions& a, const torch::optim::OptimizerOptions& b) {
  const auto equal = [&](const auto* type) {
    using Options = std::remove_cv_t<std::remove_pointer_t<decltype(type)>>;
    const auto *const left = dynamic_cast<const Options*>(&a), *const right = dynamic_cast<const Options*>(&b);
    return left == nullptr || (right != nullptr && *left == *right);
  };
  return (equal(static_cast<const Types*>(nullptr)) && ...);
}

}  // namespace

GroupOptions::GroupOptions(const torch::optim::Optimizer& optimizer) {
  for (const auto& group : optimizer.param_groups()) {
    groups_.push_back({group.options().clone(), group.params().size()});
  }
}

at::Tensor GroupOptions::Rates(const torch::optim::Optimizer& optimizer) {
  std::vector<double> rates;
  for (const auto& group : optimizer.param_groups()) rates.push_back(group.options().get_lr());
  return at::tensor(rates, at::kDouble);
}

void GroupOptions::CheckOnlyRatesDiffer(const torch::optim::Optimizer& optimizer) const {
  using namespace torch::optim;
  TORCH_CHECK(optimizer.param_groups().size() == groups_.size(), "parameter server: the optimizer has ",
              optimizer.param_groups().size(), " parameter groups, the servers know ", groups_.size());
  for (size_t g = 0; g < groups_.size(); ++g) {
    const auto& now = optimizer.param_groups()[g];
    TORCH_CHECK(now.params().size() == groups_[g].parameters, "parameter server: parameter group ", g,
                " has another number of parameters than when the servers were connected");
    groups_[g].options->set_lr(now.options().get_lr());
    const bool equal = Equal<SGDOptions, AdamOptions, AdamWOptions, RMSpropOptions, AdagradOptions>(*groups_[g].options,
                                                                                                    now.options());
    TORCH_CHECK(equal, "parameter server: an option of parameter group ", g,
                " has been changed that is no learning rate; servers keep it as it was when they were connected");
  }
}

}  // namespace lockstep::internal
