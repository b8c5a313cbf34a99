#pragma once

#include <torch/csrc/autograd/custom_function.h>

#include <optional>

#include "lockstep/amp/autocast.h"

namespace lockstep {

// Autocast in a custom autograd function, as `torch.amp.custom_fwd` and `custom_bwd` in Python:
//
//     struct Mine : torch::autograd::Function<Mine> {
//       static at::Tensor forward(torch::autograd::AutogradContext* ctx, at::Tensor a, at::Tensor b) {
//         const AutocastForward autocast(ctx, at::kCPU);                    // or
//         const AutocastForward autocast(ctx, at::kCPU, at::kFloat, a, b);  // for kernels of one dtype
//         …
//       }
//       static tensor_list backward(AutogradContext* ctx, tensor_list gradients) {
//         const AutocastBackward autocast(ctx);
//         …

/// The first line of `forward`.
class AutocastForward {
 public:
  /// `backward` runs under the autocast of `device` that is in force now.
  AutocastForward(torch::autograd::AutogradContext* ctx, c10::DeviceType device);

  /// Where autocast is in force: it is off in `forward` and `backward`, and those of the `tensors` that are of a
  /// floating-point dtype, but not double, and on `device` are cast to `dtype`. Elsewhere it does nothing.
  template <typename... Tensors>
  AutocastForward(torch::autograd::AutogradContext* ctx, c10::DeviceType device, at::ScalarType dtype,
                  Tensors&... tensors)
      : AutocastForward(ctx, device) {
    if (TurnOff(ctx, device)) (Cast(tensors, device, dtype), ...);
  }

 private:
  bool TurnOff(torch::autograd::AutogradContext* ctx, c10::DeviceType device);
  static void Cast(at::Tensor& tensor, c10::DeviceType device, at::ScalarType dtype);

  std::optional<AutocastGuard> off_;
};

/// The first line of `backward`, after an AutocastForward.
class AutocastBackward {
 public:
  /// Throws c10::Error when `forward` had none.
  explicit AutocastBackward(torch::autograd::AutogradContext* ctx);

 private:
  std::optional<AutocastGuard> guard_;
};

}  // namespace lockstep
