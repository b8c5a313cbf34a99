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
    // By itself, so that a second derivative goes through it too.
    return {SumFunction::apply(gradients[0], GroupOf(context)), at::Tensor()};
  }
};

// Each is the other's backward.
at::Tensor GatherFrom(const at::Tensor& input, const ProcessGroupPtr& group);
at::Tensor SumPartsOf(const at::Tensor& input, const ProcessGroupPtr& group);

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
    return {SumPartsOf(gradients[0], GroupOf(context)), at::Tensor()};
  }
};

struct SumPartsFunction : torch::autograd::Function<SumPartsFunction> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& input, const ProcessGroupPtr& group) {
    context->saved_data["group"] = group;
    at::Tensor output = at::empty(input.sizes().slice(1), input.options());
    ReduceScatter(output, input, group);
    return output;
  }
  static variable_list backward(AutogradContext* context, variable_list gradients) {
    return {GatherFrom(gradients[0], GroupOf(context)), at::Tensor()};
  }
};

at::Tensor GatherFrom(const at::Tensor& input, const ProcessGroupPtr& group) {
  return GatherFunction::apply(input, group);
}
at::Tensor SumPartsOf(const at::Tensor& input, const ProcessGroupPtr& group) {
  return SumPartsFunction::apply(input, group);
}

}  // namespace

at::Tensor DifferentiableAllReduce(const at::Tensor& input, const ProcessGroupPtr& group) {
  return group ? SumFunction::apply(input, group) : input;
}

at::Tensor DifferentiableAllGather(const at::Tensor& input, const ProcessGroupPtr& group) {
  return group ? GatherFrom(input, group) : input.unsqueeze(0);
}

}  // namespace lockstep
