#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <type_traits>
#include <utility>
#include <vector>

namespace lockstep::nn {

using TensorsFunction = std::function<std::vector<at::Tensor>(const std::vector<at::Tensor>&)>;

/// Runs `fn` without keeping what its backward needs, and again in backward: less memory for more time (Chen et al.,
/// arXiv:1604.06174). The second run has the first one's state of the default random generators (the CPU's and those of
/// the inputs' devices) and of autocast, so that dropout is the same. Parameters that `fn` uses get their gradients
/// too.
///
/// Backward is re-entrant: it runs a backward of its own inside. It works inside DistributedDataParallel; where several
/// checkpoints share a parameter, set static_graph. `torch::autograd::grad` and derivatives of higher order throw.
/// Undefined tensors may be among the inputs and the outputs.
std::vector<at::Tensor> ActivationCheckpoint(const TensorsFunction& fn, const std::vector<at::Tensor>& inputs);

namespace internal {
template <typename F, size_t... I>
at::Tensor CallWithTensors(F& fn, const std::vector<at::Tensor>& inputs, std::index_sequence<I...>) {
  return fn(inputs[I]...);
}
}  // namespace internal

/// The same for a function or module holder of tensors that gives one: `ActivationCheckpoint(block, x, mask)`.
template <typename F, typename... Tensors>
std::enable_if_t<(std::is_convertible_v<Tensors, at::Tensor> && ...), at::Tensor> ActivationCheckpoint(
    F fn, const at::Tensor& first, const Tensors&... more) {
  const TensorsFunction on_list = [fn](const std::vector<at::Tensor>& inputs) mutable {
    return std::vector<at::Tensor>{
        internal::CallWithTensors(fn, inputs, std::make_index_sequence<1 + sizeof...(Tensors)>())};
  };
  return ActivationCheckpoint(on_list, std::vector<at::Tensor>{first, more...})[0];
}

}  // namespace lockstep::nn
