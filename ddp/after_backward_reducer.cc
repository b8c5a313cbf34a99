#include "lockstep/ddp/after_backward_reducer.h"

#include <ATen/Functions.h>
#include <c10/core/GradMode.h>

#include "lockstep/ddp/internal/buckets.h"

namespace lockstep {

void AfterBackwardReducer::Reduce(const std::string& problem) {
  const at::NoGradGuard no_grad;
  std::vector<at::Tensor> tensors;
  std::vector<size_t> order;
  for (size_t i = 0; i < parameters().size(); ++i) {
    tensors.push_back(parameters()[i].parameter);
    order.push_back(i);
  }
  constexpr size_t kNoCap = static_cast<size_t>(-1);
  const double weight = this->weight();
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
    AllReduce(internal::AsReal(flat), group());
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
  if (failed) ThrowProblems(problem);
}

}  // namespace lockstep
