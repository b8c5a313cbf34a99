#include "lockstep/comm/process_group.h"

#include <absl/status/status.h>
#include <absl/strings/str_cat.h>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>

#include "lockstep/base/error_text.h"
#include "lockstep/base/status_macros.h"
#include "lockstep/comm/environment.h"
#include "lockstep/comm/gloo/gloo.h"
#include "lockstep/comm/nccl/nccl.h"
#include "lockstep/comm/rendezvous.h"

#include "lockstep/base/logging.h"

namespace lockstep {

absl::Status ValidateBackend(const std::string& backend, bool cuda) {
  if (backend == "mpi") {
    return absl::InvalidArgumentError(
        "backend mpi: not offered; start the ranks with mpirun instead, giving each RANK, WORLD_SIZE, MASTER_ADDR and "
        "MASTER_PORT, for example: mpirun -n 2 sh -c 'RANK=$OMPI_COMM_WORLD_RANK WORLD_SIZE=$OMPI_COMM_WORLD_SIZE "
        "MASTER_ADDR=localhost MASTER_PORT=29500 exec ./trainer --backend=gloo'");
  }
  if (backend != "auto" && backend != "gloo" && backend != "nccl") {
    return absl::InvalidArgumentError(absl::StrCat("backend ", backend, ": unknown; known: auto, gloo, nccl"));
  }
  if (backend == "nccl" && !HasNccl()) {
    return absl::FailedPreconditionError(
        "backend nccl: this program was built without CUDA; build it with --config=cuda");
  }
  if (backend == "nccl" && !cuda) {
    return absl::InvalidArgumentError("backend nccl: it moves CUDA tensors only, and this run is on the CPU; use gloo");
  }
  return absl::OkStatus();
}

absl::StatusOr<ProcessGroupPtr> InitProcessGroup(const ProcessGroupOptions& options) {
  LOCKSTEP_RETURN_IF_ERROR(ValidateBackend(options.backend, options.cuda));
  Rendezvous place;
  if (options.store) {
    place = {options.store, options.rank, options.world_size, ""};
    if (place.world_size < 1 || place.rank < 0 || place.rank >= place.world_size) {
      return absl::InvalidArgumentError(absl::StrCat("process group: with a store of your own, rank (", place.rank,
                                                     ") and world_size (", place.world_size, ") must be given"));
    }
    if (place.world_size == 1) return ProcessGroupPtr();
  } else {
    int world_size = options.world_size;
    if (world_size < 0 && options.init_method == "env://") {
      LOCKSTEP_ASSIGN_OR_RETURN(DistributedEnvironment env, ReadEnvironment());
      world_size = env.world_size;
    }
    if (world_size == 1) return ProcessGroupPtr();
    LOCKSTEP_ASSIGN_OR_RETURN(place,
                              OpenRendezvous(options.init_method, options.rank, options.world_size, options.timeout));
    if (place.world_size == 1) return ProcessGroupPtr();
  }

  // Who has come, for the error when somebody does not.
  const auto here = c10::make_intrusive<c10d::PrefixStore>("here", place.store);
  const bool nccl = options.backend == "nccl" || (options.backend == "auto" && options.cuda && HasNccl());
  try {
    here->set(std::to_string(place.rank), std::vector<uint8_t>{1});
    auto group = c10::make_intrusive<c10d::ProcessGroup>(place.store, place.rank, place.world_size);
    group->setDefaultBackend(nccl ? c10d::ProcessGroup::BackendType::NCCL : c10d::ProcessGroup::BackendType::GLOO);
    const auto gloo = MakeGlooBackend(c10::make_intrusive<c10d::PrefixStore>("gloo", place.store), place.rank,
                                      place.world_size, options.timeout, IsLoopback(place.host) ? "127.0.0.1" : "");
    group->setBackend(c10::kCPU, c10d::ProcessGroup::BackendType::GLOO, gloo);
    if (nccl) {
      LOCKSTEP_ASSIGN_OR_RETURN(auto backend,
                                MakeNcclBackend(c10::make_intrusive<c10d::PrefixStore>("nccl", place.store), place.rank,
                                                place.world_size, options.timeout));
      group->setBackend(c10::kCUDA, c10d::ProcessGroup::BackendType::NCCL, backend);
    } else if (options.cuda) {
      group->setBackend(c10::kCUDA, c10d::ProcessGroup::BackendType::GLOO, gloo);
    }
    VLOG(1) << "rank " << place.rank << " of " << place.world_size << ": process group ready";
    return group;
  } catch (const std::exception& e) {
    std::string missing;
    try {
      for (int rank = 0; rank < place.world_size; ++rank) {
        if (!here->check({std::to_string(rank)})) absl::StrAppend(&missing, missing.empty() ? "" : ", ", rank);
      }
    } catch (const std::exception&) {
      missing.clear();  // the store is gone too
    }
    if (!missing.empty()) {
      return absl::UnavailableError(
          absl::StrCat("process group: of ", place.world_size, " ranks these did not come: ", missing));
    }
    return absl::UnavailableError(absl::StrCat("process group: rank ", place.rank, " of ", place.world_size,
                                               " could not join: ", FirstLine(e.what())));
  }
}

void DestroyProcessGroup(ProcessGroupPtr& group) {
  if (!group) return;
  Barrier(group);
  group.reset();
}

}  // namespace lockstep
