#pragma once

#include <absl/status/statusor.h>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include <chrono>
#include <string>

#include "lockstep/comm/collectives.h"

namespace lockstep {

struct ProcessGroupOptions {
  std::string init_method = "env://";     ///< See OpenRendezvous; ignored when `store` is given.
  c10::intrusive_ptr<c10d::Store> store;  ///< A store of the caller's; rank and world_size are then required.
  int rank = -1;                          ///< -1: from the URL or the environment.
  int world_size = -1;                    ///< -1: from the URL or the environment.
  std::string backend = "auto";           ///< `auto`, `gloo` or `nccl`; auto: NCCL when `cuda`, and Gloo.
  bool cuda = false;                      ///< Gradients will live on CUDA devices.
  std::chrono::milliseconds timeout = std::chrono::seconds(1800);  ///< Of the rendezvous and of every collective.
};

/// Makes the process group of this run, for one thread at a time. On CUDA the caller has made its device the current
/// one. CPU tensors always have a backend (Gloo), also beside NCCL. In a world of one the result is null and nothing is
/// opened. Collective otherwise. Errors: InvalidArgument (unknown backend, wrong numbers), Unavailable (port in use,
/// ranks that don't come), FailedPrecondition (NCCL in a program without CUDA).
absl::StatusOr<ProcessGroupPtr> InitProcessGroup(const ProcessGroupOptions& options = {});

/// Checks the name alone, so that a program can refuse it before it starts ranks.
absl::Status ValidateBackend(const std::string& backend, bool cuda);

/// Waits until every rank is here, then lets go of the connections. Null is allowed.
void DestroyProcessGroup(ProcessGroupPtr& group);

}  // namespace lockstep
