#pragma once

#include <ATen/core/Tensor.h>

#include <string>
#include <vector>

#include "lockstep/ddp/tensor_visitor.h"

namespace lockstep::internal {

/// The tensors that a value holds, as tensor_visitor.h finds them; `opaque` (may be null) becomes the name of a type
/// that can't be looked into.
template <typename T>
std::vector<at::Tensor> TensorsOf(const T& value, std::string* opaque = nullptr) {
  std::vector<at::Tensor> tensors;
  Walk(
      value, [&](const at::Tensor& tensor) { tensors.push_back(tensor); },
      [&](std::string type) {
        if (opaque != nullptr) *opaque = std::move(type);
      });
  return tensors;
}

/// Puts `tensors`, as many, in the place of those that `value` holds.
template <typename T>
void ReplaceTensors(T& value, const std::vector<at::Tensor>& tensors) {
  // Visitors see tensors as const, but `value` and what it owns are not: a visited member may be written.
  size_t next = 0;
  const auto ignore = [](const std::string&) {};
  Walk(
      value, [&](const at::Tensor& tensor) { const_cast<at::Tensor&>(tensor) = tensors[next++]; }, ignore);
  next = 0;
  Walk(
      value,
      [&](const at::Tensor& tensor) {
        TORCH_CHECK(tensor.is_same(tensors[next++]), "VisitTensors of ", c10::demangle(typeid(T).name()),
                    " visits a copy of a tensor and not the member itself, so that it can't be replaced");
      },
      ignore);
}

}  // namespace lockstep::internal
