#pragma once

#include <ATen/core/Tensor.h>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include <string>

namespace lockstep {

/// "sum", "avg", "product", "min", "max", "band", "bor", "bxor"; "none" for others.
const char* ReductionName(c10d::ReduceOp::RedOpType reduction);

// What a backend ("shm", "gloo", "nccl", "hierarchical") defines, as docs/collectives.md shows it. A backend that isn't
// ours to know is taken to define everything. "none", for a world of one, defines what shm does.

bool IsReductionDefined(const std::string& backend, c10d::ReduceOp::RedOpType reduction, c10::ScalarType dtype);
/// Whether tensors of `dtype` can be moved: broadcast, gather, scatter, all-to-all.
bool IsMovable(const std::string& backend, c10::ScalarType dtype);

// Throw c10::Error "all-reduce: avg of Int is not defined on backend gloo"; also when `group` has no backend for the
// tensor's device, or the tensor isn't dense.

void CheckDefined(const char* operation, c10d::ReduceOp::RedOpType reduction, const at::Tensor& tensor,
                  const c10::intrusive_ptr<c10d::ProcessGroup>& group);
void CheckMovable(const char* operation, const at::Tensor& tensor, const c10::intrusive_ptr<c10d::ProcessGroup>& group);

}  // namespace lockstep
