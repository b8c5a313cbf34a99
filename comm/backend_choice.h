#pragma once

#include <absl/status/status.h>
#include <absl/status/statusor.h>

#include <string>

namespace lockstep {

/// Which backend moves the tensors of which device.
struct BackendChoice {
  std::string cpu = "auto";  ///< `shm`, `gloo`, or `auto`: shm when all ranks share the host and its memory, else Gloo.
  std::string cuda;          ///< `nccl`, `gloo`, or empty: CUDA tensors aren't moved.
};

/// Reads `auto`, `shm`, `gloo`, `nccl`, or one for each device as in c10d: `cpu:shm,cuda:nccl`. `cuda` says whether the
/// run is on CUDA devices; `auto` takes NCCL for them where the program has it, else Gloo.
/// InvalidArgument for an unknown name or one that can't move the run's tensors; FailedPrecondition for NCCL in a
/// program without CUDA.
absl::StatusOr<BackendChoice> ParseBackend(const std::string& text, bool cuda);

/// The same check alone, so that a program can refuse a name before it starts ranks.
absl::Status ValidateBackend(const std::string& text, bool cuda);

}  // namespace lockstep
