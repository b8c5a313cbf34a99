#include "lockstep/comm/differentiable.h"

#include <ATen/Functions.h>
#include <torch/csrc/autograd/custom_function.h>

#include <vector>

namespace lockstep {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

ProcessGroupPtr GroupOf(AutogradContext* context) {
  return context->saved_data["group"].toCustomClass<c10d::ProcessGroup>();
}

struct SumFunction : torch::autograd::Function<SumFunction> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& input, const ProcessGroupPtr& group) {
    context->saved_data["group"] = group;
    at::Tensor output = input.clone(at::MemoryFormat::Contiguous);
    AllReduce(output, group);
    return output;
  }
  static variable_list backward(AutogradContext* context, variable_list gradients) {
    at::Tensor gradient = gradients[0].clone(at::MemoryFormat::Contiguous);
    AllReduce(gradient, GroupOf(context));
    return {gradient, at::Tensor()};
  }
};

struct GatherFunction : torch::autograd::Function<GatherFunction> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& input, const ProcessGroupPtr& group) {
    context->saved_data["group"] = group;
    std::vector<int64_t> sizes = {group->getSize()};
    sizes.insert(sizes.end(), input.sizes().begin(), input.sizes().end());
    at::Tensor output = at::empty(sizes, input.options());
    AllGatherInto(output, input, group);
    return output;
  }
  static variable_list backward(AutogradContext* context, variable_list gradients) {
    const auto sizes = gradients[0].sizes();
    at::Tensor gradient = at::empty(sizes.slice(1), gradients[0].options());
    ReduceScatter(gradient, gradients[0], GroupOf(context));
    return {gradient, at::Tensor()};
  }
};

}  // namespace

at::Tensor DifferentiableAllReduce(const at::Tensor& input, const ProcessGroupPtr& group) {
  return group ? SumFunction::apply(input, group) : input;
}

at::Tensor DifferentiableAllGather(const at::Tensor& input, const ProcessGroupPtr& group) {
  return group ? GatherFunction::apply(input, group) : input.unsqueeze(0);
}

}  // namespace lockstep
