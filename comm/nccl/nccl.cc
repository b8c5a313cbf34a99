#include "lockstep/comm/nccl/nccl.h"

#include <torch/csrc/distributed/c10d/ProcessGroupNCCL.hpp>

namespace lockstep {

bool HasNccl() { return true; }

absl::StatusOr<c10::intrusive_ptr<c10d::Backend>> MakeNcclBackend(const c10::intrusive_ptr<c10d::Store>& store,
                                                                  int rank, int world_size,
                                                                  std::chrono::milliseconds timeout) {
  auto options = c10d::ProcessGroupNCCL::Options::create();
  options->timeout = timeout;
  c10::intrusive_ptr<c10d::Backend> backend =
      c10::make_intrusive<c10d::ProcessGroupNCCL>(store, rank, world_size, options);
  return backend;
}

}  // namespace lockstep
