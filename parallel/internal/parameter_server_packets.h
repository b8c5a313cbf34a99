#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

namespace lockstep::internal {

/// One message's worth of memory on the CPU, and tensors in it.
class PackedTensors {
 public:
  /// With tensors of these shapes and dtypes, contiguous; uninitialised.
  explicit PackedTensors(const std::vector<at::Tensor>& like);

  const at::Tensor& bytes() const { return bytes_; }
  const at::Tensor& operator[](size_t i) const { return tensors_[i]; }
  size_t size() const { return tensors_.size(); }
  /// In both directions, from any device.
  void CopyFrom(const std::vector<at::Tensor>& tensors);
  void CopyTo(const std::vector<at::Tensor>& tensors) const;

 private:
  at::Tensor bytes_;
  std::vector<at::Tensor> tensors_;
};

}  // namespace lockstep::internal
