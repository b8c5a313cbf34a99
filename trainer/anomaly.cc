#include "lockstep/trainer/anomaly.h"

#include <ATen/Functions.h>
#include <torch/csrc/autograd/anomaly_mode.h>
#include <torch/csrc/autograd/autograd.h>

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/base/error_text.h"

namespace lockstep {
namespace {

/// Hooks on parameters, while it lives, that remember the first whose gradient is not finite.
class FirstBadGradient {
 public:
  FirstBadGradient(torch::optim::Optimizer& optimizer, bool infinite_is_bad,
                   const std::map<c10::TensorImpl*, std::string>& names) {
    size_t index = 0;
    for (auto& group : optimizer.param_groups()) {
      for (const auto& parameter : group.params()) {
        const std::string number = "parameter " + std::to_string(index++) + " of the optimizer";
        if (!parameter.requires_grad()) continue;
        const auto named = names.find(parameter.unsafeGetTensorImpl());
        const std::string name = named != names.end() ? "parameter " + named->second : number;
        parameters.push_back(parameter);
        hooks_.push_back(parameter.register_hook([this, name, infinite_is_bad](const at::Tensor& grad) {
          if (!name_.empty() || !grad.defined()) return;
          const at::Tensor values = grad.is_sparse() ? grad._values() : grad;
          const bool bad = infinite_is_bad ? !values.isfinite().all().item<bool>() : values.isnan().any().item<bool>();
          if (bad) name_ = name;
        }));
      }
    }
  }
  ~FirstBadGradient() {
    for (size_t i = 0; i < hooks_.size(); ++i) parameters[i].remove_hook(hooks_[i]);
  }
  FirstBadGradient(const FirstBadGradient&) = delete;
  FirstBadGradient& operator=(const FirstBadGradient&) = delete;

  const std::string& name() const { return name_; }
  std::vector<at::Tensor> parameters;

 private:
  std::vector<unsigned> hooks_;
  std::string name_;
};

}  // namespace

void BackwardWithAnomalyDetection(const at::Tensor& loss, torch::optim::Optimizer& optimizer, bool infinite_is_anomaly,
                                  DistributedDataParallelBase* ddp) {
  std::map<c10::TensorImpl*, std::string> names;
  if (ddp != nullptr) {
    for (const auto& item : ddp->named_parameters()) names[item.value().unsafeGetTensorImpl()] = item.key();
  }
  FirstBadGradient first(optimizer, infinite_is_anomaly, names);
  std::string node;
  try {
    const torch::autograd::DetectAnomalyGuard guard(/*check_nan=*/true);
    loss.backward({}, /*retain_graph=*/true);
  } catch (const std::exception& e) {
    node = FirstLine(e.what());
    // As LibTorch puts it; another rank's may be in an error of the reducer's.
    if (node.rfind("Function '", 0) != 0 || node.find("returned nan values") == std::string::npos) throw;
  }
  if (node.empty() && first.name().empty()) return;
  if (!node.empty() && first.name().empty()) {
    // Again, past that node, as far as the parameters; grad() is left alone, and nothing is communicated.
    try {
      torch::autograd::grad({loss}, first.parameters, {}, /*retain_graph=*/true, /*create_graph=*/false,
                            /*allow_unused=*/true);
    } catch (const std::exception&) {  // an activation checkpoint in between: the node is all there is
    }
  }
  const std::string why =
      (node.empty() ? "backward gave a gradient that is not finite" : node) +
      (first.name().empty() ? std::string() : "; the first gradient that is not finite is that of " + first.name());
  if (ddp != nullptr) ddp->reducer().Abandon(why);  // so that the other ranks throw it too
  TORCH_CHECK(false, why);
}

}  // namespace lockstep
