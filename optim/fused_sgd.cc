#include "lockstep/optim/fused_sgd.h"

#include <ATen/ops/_fused_sgd.h>
#include <ATen/ops/empty_like.h>
#include <c10/core/GradMode.h>

#include <map>
#include <memory>
#include <tuple>
#include <utility>
#include <vector>

namespace lockstep {
namespace {

/// What one call of the kernel takes: tensors of one device and type, all with momentum buffers that are new, or old.
struct Call {
  std::vector<at::Tensor> parameters, gradients, buffers;
};

bool IsLike(const at::Tensor& a, const at::Tensor& b) {
  return a.layout() == at::kStrided && a.scalar_type() == b.scalar_type() && a.device() == b.device() &&
         a.sizes() == b.sizes() && a.strides() == b.strides();
}

}  // namespace

bool FusedSGD::Fits(const at::Tensor& parameter) {
  const at::Tensor& gradient = parameter.grad();
  if (!parameter.is_non_overlapping_and_dense() || !parameter.is_floating_point() || !IsLike(gradient, parameter)) {
    return false;
  }
  const auto found = state_.find(parameter.unsafeGetTensorImpl());
  if (found == state_.end()) return true;
  const auto& buffer = static_cast<torch::optim::SGDParamState&>(*found->second).momentum_buffer();
  return !buffer.defined() || IsLike(buffer, parameter);
}

at::Tensor FusedSGD::step(LossClosure closure) {
  for (const auto& group : param_groups_) {
    for (const auto& parameter : group.params()) {
      if (parameter.grad().defined() && !Fits(parameter)) return torch::optim::SGD::step(std::move(closure));
    }
  }
  at::Tensor loss;
  if (closure) {
    const c10::AutoGradMode with_gradients(true);
    loss = closure();
  }
  const c10::NoGradGuard no_grad;
  for (auto& group : param_groups_) {
    const auto& options = static_cast<const torch::optim::SGDOptions&>(group.options());
    std::map<std::tuple<c10::DeviceType, c10::DeviceIndex, at::ScalarType, bool>, Call> calls;
    for (const auto& parameter : group.params()) {
      const at::Tensor& gradient = parameter.grad();
      if (!gradient.defined()) continue;
      bool first = false;
      at::Tensor buffer;
      if (options.momentum() != 0) {
        auto& state = state_[parameter.unsafeGetTensorImpl()];
        if (!state) state = std::make_unique<torch::optim::SGDParamState>();
        auto& of_parameter = static_cast<torch::optim::SGDParamState&>(*state);
        first = !of_parameter.momentum_buffer().defined();
        if (first) of_parameter.momentum_buffer(at::empty_like(parameter));
        buffer = of_parameter.momentum_buffer();
      }
      Call& call = calls[{parameter.device().type(), parameter.device().index(), parameter.scalar_type(), first}];
      call.parameters.push_back(parameter);
      call.gradients.push_back(gradient);
      if (buffer.defined()) call.buffers.push_back(buffer);
    }
    for (auto& [kind, call] : calls) {
      at::_fused_sgd_(call.parameters, call.gradients, call.buffers, options.weight_decay(), options.momentum(),
                      options.lr(), options.dampening(), options.nesterov(), /*maximize=*/false,
                      /*is_first_step=*/std::get<3>(kind));
    }
  }
  return loss;
}

}  // namespace lockstep
