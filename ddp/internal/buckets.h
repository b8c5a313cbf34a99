#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "lockstep/comm/collectives.h"

namespace lockstep::internal {

/// Cuts parameters, taken in `order` (indices), into buckets: one kind of dtype and device each, closed when it holds
/// the capacity or more; of each kind the first has a capacity of its own. The same on all ranks whose device types
/// agree.
std::vector<std::vector<size_t>> AssignBuckets(const std::vector<at::Tensor>& parameters,
                                               const std::vector<size_t>& order, size_t first_cap_bytes,
                                               size_t cap_bytes);

/// Zeros, flat; in memory that the backend can communicate without a copy, if it has such.
at::Tensor NewFlat(int64_t elements, at::TensorOptions options, const ProcessGroupPtr& group);

/// A tensor over `flat`'s memory from element `offset` on that autograd takes for no view, so that the optimizers'
/// zero_grad may detach it; shaped like `like`, and strided so where that leaves no gaps.
at::Tensor Alias(const at::Tensor& flat, int64_t offset, const at::Tensor& like);

/// What goes into a reduction for `tensor`: itself, or the real numbers that a complex one is made of.
at::Tensor AsReal(const at::Tensor& tensor);

}  // namespace lockstep::internal
