#include "lockstep/amp/function_autocast.h"

#include <ATen/autocast_mode.h>

#include <vector>

namespace lockstep {
namespace {

constexpr char kKey[] = "lockstep_autocast";  // device, on or off, dtype

void Save(torch::autograd::AutogradContext* ctx, c10::DeviceType device, bool enabled) {
  ctx->saved_data[kKey] = std::vector<int64_t>{static_cast<int64_t>(device), enabled,
                                               static_cast<int64_t>(at::autocast::get_autocast_dtype(device))};
}

}  // namespace

AutocastForward::AutocastForward(torch::autograd::AutogradContext* ctx, c10::DeviceType device) {
  Save(ctx, device, at::autocast::is_autocast_enabled(device));
}

bool AutocastForward::TurnOff(torch::autograd::AutogradContext* ctx, c10::DeviceType device) {
  if (!at::autocast::is_autocast_enabled(device)) return false;
  Save(ctx, device, false);
  off_.emplace(device, std::nullopt);
  return true;
}

void AutocastForward::Cast(at::Tensor& tensor, c10::DeviceType device, at::ScalarType dtype) {
  if (tensor.defined() && tensor.device().type() == device && tensor.is_floating_point() &&
      tensor.scalar_type() != at::kDouble) {
    tensor = tensor.to(dtype);
  }
}

AutocastBackward::AutocastBackward(torch::autograd::AutogradContext* ctx) {
  const auto found = ctx->saved_data.find(kKey);
  TORCH_CHECK(found != ctx->saved_data.end(), "AutocastBackward: `forward` has no AutocastForward");
  const std::vector<int64_t> saved = found->second.toIntVector();
  const auto dtype = static_cast<at::ScalarType>(saved[2]);
  guard_.emplace(static_cast<c10::DeviceType>(saved[0]), saved[1] != 0 ? std::optional(dtype) : std::nullopt);
}

}  // namespace lockstep
