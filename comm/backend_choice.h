#pragma once

#include <absl/status/status.h>
#include <absl/status/statusor.h>

#include <string>

namespace lockstep {

/// Which backend moves the tensors of which device.
struct BackendChoice {
  /// `shm`, `hierarchical`, `gloo`, or `auto`: shm when all ranks share a host and its memory, hierarchical when some
  /// do, else Gloo.
  std::string cpu = "auto";
  std::string cuda;  ///< `nccl`, `gloo`, or empty: CUDA tensors aren't moved.
};

/// Reads `auto`, `shm`, `hierarchical`, `gloo`, `nccl`, or one for each device as in c10d: `cpu:shm,cuda:nccl`. `cuda`
/// says whether the run is on CUDA devices; `auto` takes NCCL for them where the program has it, else Gloo.
/// InvalidArgument for an unknown name or one that can't move the run's tensors; FailedPrecondition for NCCL in a
/// program without CUDA.
absl::StatusOr<BackendChoice> ParseBackend(const std::string& text, bool cuda);

/// The same check alone, so that a program can refuse a name before it starts ranks.
absl::Status ValidateBackend(const std::string& text, bool cuda);

}  // namespace lockstep
