#include "lockstep/ddp/after_backward_reducer.h"

#include <ATen/Functions.h>
#include <c10/core/GradMode.h>

#include <set>

#include "lockstep/comm/texts.h"
#include "lockstep/ddp/internal/buckets.h"

namespace lockstep {

AfterBackwardReducer::AfterBackwardReducer(std::vector<NamedParameter> parameters, ProcessGroupPtr group)
    : group_(std::move(group)), watch_(*this) {
  std::set<c10::TensorImpl*> seen;
  for (auto& named : parameters) {
    if (!named.parameter.requires_grad() || !seen.insert(named.parameter.unsafeGetTensorImpl()).second) continue;
    TORCH_CHECK(!named.sparse, "reducer: ", named.name,
                " has sparse gradients, which AfterBackwardReducer can't reduce");
    parameters_.push_back(std::move(named));
  }
  TORCH_CHECK(!parameters_.empty(), "reducer: the module has no parameter that needs a gradient");
  watch_.Watch(parameters_, /*hooks=*/group_ != nullptr);
}

void AfterBackwardReducer::PrepareForBackward(const std::vector<at::Tensor>& outputs) {
  if (!group_) return;
  if (watch_.IsUnfinished()) Abandon("the last backward did not come to its end: it threw");
  watch_.Announce(outputs, /*average=*/true);
}

void AfterBackwardReducer::PrepareForAccumulation(const std::vector<at::Tensor>& outputs) {
  if (group_) watch_.Announce(outputs, /*average=*/false);
}

void AfterBackwardReducer::SetWeight(std::optional<double> weight) { weight_ = weight; }

void AfterBackwardReducer::Abandon(const std::string& why) {
  if (!group_ || !watch_.IsAwaited()) return;
  watch_.Reset();
  Reduce(why);
}

void AfterBackwardReducer::Reduce(const std::string& problem) {
  const at::NoGradGuard no_grad;
  std::vector<at::Tensor> tensors;
  std::vector<size_t> order;
  for (size_t i = 0; i < parameters_.size(); ++i) {
    tensors.push_back(parameters_[i].parameter);
    order.push_back(i);
  }
  constexpr size_t kNoCap = static_cast<size_t>(-1);
  const double weight = weight_.value_or(1.0 / group_->getSize());
  bool failed = false;
  for (const auto& members : internal::AssignBuckets(tensors, order, kNoCap, kNoCap)) {
    std::vector<at::Tensor> parts;
    for (size_t i : members) {
      const at::Tensor& grad = tensors[i].grad();
      parts.push_back(grad.defined() && weight != 0 ? grad.reshape({-1}).mul(weight)
                                                    : at::zeros({tensors[i].numel()}, tensors[i].options()));
    }
    // The last number says whether something is wrong.
    parts.push_back(at::full({1}, problem.empty() ? 0. : 1., parts[0].options()));
    const at::Tensor flat = at::cat(parts);
    AllReduce(internal::AsReal(flat), group_);
    failed |= internal::AsReal(flat[flat.numel() - 1]).ne(0).any().item<bool>();
    int64_t offset = 0;
    for (size_t i : members) {
      const at::Tensor average = flat.narrow(0, offset, tensors[i].numel()).view(tensors[i].sizes());
      offset += tensors[i].numel();
      at::Tensor& grad = tensors[i].mutable_grad();
      if (!grad.defined()) grad = at::empty_like(tensors[i], tensors[i].options().requires_grad(false));
      grad.copy_(average);
    }
  }
  if (!failed) return;
  const std::vector<std::string> all = AllGatherString(problem, group_);
  for (size_t rank = 0; rank < all.size(); ++rank) {
    TORCH_CHECK(all[rank].empty(), "reducer: rank ", rank, ": ", all[rank]);
  }
}

}  // namespace lockstep
