#include "lockstep/trainer/anomaly.h"

#include <absl/status/status.h>
#include <ATen/Functions.h>
#include <torch/csrc/autograd/anomaly_mode.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/function.h>

#include <map>
#include <set>

#include "lockstep/amp/master_weights.h"
#include "lockstep/base/error_text.h"
#include "lockstep/comm/agree.h"

namespace lockstep {
namespace {

/// Whether backward from `loss` goes through one of our collectives.
bool HasCollectives(const at::Tensor& loss) {
  std::set<torch::autograd::Node*> seen;
  std::vector<torch::autograd::Node*> queue = {loss.grad_fn().get()};
  while (!queue.empty()) {
    torch::autograd::Node* const node = queue.back();
    queue.pop_back();
    if (node == nullptr || !seen.insert(node).second) continue;
    const std::string name = node->name();
    if (name.find("lockstep") != std::string::npos &&
        (name.find("SyncBatchNorm") != std::string::npos || name.find("AllReduce") != std::string::npos ||
         name.find("AllGather") != std::string::npos)) {
      return true;
    }
    for (const auto& edge : node->next_edges()) queue.push_back(edge.function.get());
  }
  return false;
}

}  // namespace

AnomalyDetector::AnomalyDetector(torch::optim::Optimizer& optimizer, bool infinite_is_anomaly,
                                 DistributedDataParallelBase* ddp)
    : ddp_(ddp) {
  std::map<c10::TensorImpl*, std::string> names;
  if (ddp != nullptr) {
    for (const auto& item : ddp->named_parameters()) names[item.value().unsafeGetTensorImpl()] = item.key();
  }
  size_t index = 0;
  std::map<const c10::TensorImpl*, at::Tensor> of_model;  // a copy of master weights gets no gradient by itself
  if (const auto* master = MasterWeights::Of(optimizer)) {
    for (size_t i = 0; i < master->copies().size(); ++i) {
      of_model[master->copies()[i].unsafeGetTensorImpl()] = master->half_parameters()[i];
    }
  }
  for (auto& group : optimizer.param_groups()) {
    for (at::Tensor parameter : group.params()) {
      const auto model = of_model.find(parameter.unsafeGetTensorImpl());
      if (model != of_model.end()) parameter = model->second;
      const std::string number = std::to_string(index++) + " of the optimizer";
      if (!parameter.requires_grad()) continue;
      const auto named = names.find(parameter.unsafeGetTensorImpl());
      const std::string name = "parameter " + (named != names.end() ? named->second : number);
      parameters_.push_back(parameter);
      hooks_.push_back(parameter.register_hook([this, name, infinite_is_anomaly](const at::Tensor& grad) {
        if (!first_bad_.empty() || !grad.defined()) return;
        const at::Tensor values = grad.is_sparse() ? grad._values() : grad;
        const at::Tensor bad = infinite_is_anomaly ? values.isfinite().logical_not() : values.isnan();
        if (bad.any().item<bool>()) first_bad_ = name;
      }));
    }
  }
}

AnomalyDetector::~AnomalyDetector() {
  for (size_t i = 0; i < hooks_.size(); ++i) parameters_[i].remove_hook(hooks_[i]);
}

void AnomalyDetector::Backward(const at::Tensor& loss) {
  first_bad_.clear();
  std::string node;
  bool has_collectives = false;
  try {
    const torch::autograd::DetectAnomalyGuard guard(/*check_nan=*/true);
    loss.backward({}, /*retain_graph=*/true);
  } catch (const std::exception& e) {
    node = FirstLine(e.what());
    // As LibTorch puts it; another rank's may be in an error of the reducer's.
    if (node.rfind("Function '", 0) != 0 || node.find("returned nan values") == std::string::npos) throw;
    has_collectives = HasCollectives(loss);
    if (first_bad_.empty() && !has_collectives) {
      // Again, past that node, as far as the parameters; grad() is left alone.
      try {
        torch::autograd::grad({loss}, parameters_, {}, /*retain_graph=*/true, /*create_graph=*/false,
                              /*allow_unused=*/true);
      } catch (const std::exception&) {  // an activation checkpoint in between: the node is all there is
      }
    }
  }
  std::string why;
  if (!node.empty() || !first_bad_.empty()) {
    why = node.empty() ? "backward gave a gradient that is not finite" : node;
    if (!first_bad_.empty()) why += "; the first gradient that is not finite is that of " + first_bad_;
  }
  if (ddp_ == nullptr || has_collectives) {
    TORCH_CHECK(why.empty(), why);
    return;
  }
  // Where the others wait for this rank's gradients they throw here; else all learn of it together.
  if (!why.empty()) ddp_->reducer().Abandon(why);
  const absl::Status status = AgreeOnStatus(why.empty() ? absl::OkStatus() : absl::InternalError(why), ddp_->group());
  TORCH_CHECK(status.ok(), std::string(status.message()));
}

}  // namespace lockstep
