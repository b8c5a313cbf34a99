#include "lockstep/comm/nccl/nccl.h"

namespace lockstep {

bool HasNccl() { return false; }

absl::StatusOr<c10::intrusive_ptr<c10d::Backend>> MakeNcclBackend(const c10::intrusive_ptr<c10d::Store>&, int, int,
                                                                  std::chrono::milliseconds) {
  return absl::FailedPreconditionError(
      "backend nccl: this program was built without CUDA; build it with --config=cuda");
}

}  // namespace lockstep
