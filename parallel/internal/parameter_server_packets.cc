#include "lockstep/parallel/internal/parameter_server_packets.h"

#include <ATen/Functions.h>
#include <c10/core/GradMode.h>

namespace lockstep::internal {
namespace {

constexpr int64_t kAlignment = 16;  // of any dtype

}  // namespace

PackedTensors::PackedTensors(const std::vector<at::Tensor>& like) {
  std::vector<int64_t> offsets;
  int64_t total = 0;
  for (const auto& tensor : like) {
    offsets.push_back(total);
    const int64_t bytes = tensor.numel() * static_cast<int64_t>(tensor.itemsize());
    total += (bytes + kAlignment - 1) / kAlignment * kAlignment;
  }
  bytes_ = at::empty({total}, at::kByte);
  for (size_t i = 0; i < like.size(); ++i) {
    const int64_t bytes = like[i].numel() * static_cast<int64_t>(like[i].itemsize());
    tensors_.push_back(bytes_.narrow(0, offsets[i], bytes).view(like[i].scalar_type()).view(like[i].sizes()));
  }
}

void PackedTensors::CopyFrom(const std::vector<at::Tensor>& tensors) {
  const at::NoGradGuard no_grad;
  for (size_t i = 0; i < tensors.size(); ++i) tensors_[i].copy_(tensors[i]);
}

void PackedTensors::CopyTo(const std::vector<at::Tensor>& tensors) const {
  const at::NoGradGuard no_grad;
  for (size_t i = 0; i < tensors.size(); ++i) tensors[i].detach().copy_(tensors_[i]);
}

}  // namespace lockstep::internal
