#pragma once

#include <absl/status/statusor.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include <chrono>

namespace lockstep {

/// Whether this program was built with `--config=cuda`, and so has NCCL.
bool HasNccl();

/// LibTorch's NCCL backend, for CUDA tensors; this process must already have chosen its device.
/// FailedPrecondition in a program that was built without CUDA.
absl::StatusOr<c10::intrusive_ptr<c10d::Backend>> MakeNcclBackend(const c10::intrusive_ptr<c10d::Store>& store,
                                                                  int rank, int world_size,
                                                                  std::chrono::milliseconds timeout);

}  // namespace lockstep
