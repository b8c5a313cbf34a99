#pragma once

#include <ATen/core/Tensor.h>

#include <utility>
#include <vector>

namespace lockstep {

/// Lists of tensors of one device and dtype each, as LibTorch's multi-tensor kernels want them.
class TensorKinds {
 public:
  void Add(at::Tensor tensor) {
    for (auto& list : lists_) {
      if (list[0].device() != tensor.device() || list[0].scalar_type() != tensor.scalar_type()) continue;
      list.push_back(std::move(tensor));
      return;
    }
    lists_.push_back({std::move(tensor)});
  }
  std::vector<std::vector<at::Tensor>>& lists() { return lists_; }

 private:
  std::vector<std::vector<at::Tensor>> lists_;
};

}  // namespace lockstep
