#pragma once

#include <absl/status/statusor.h>

#include <optional>
#include <string>

namespace lockstep {

/// What a launcher that knows nothing of RANK and WORLD_SIZE has said about this process.
struct OuterPlacement {
  std::string launcher;  ///< For people, such as "mpirun".
  std::string rank_variable, size_variable;
  int rank = 0, world_size = 1, local_rank = 0, local_world_size = 1;
  std::string master_addr;  ///< Where rank 0 is; empty where the launcher doesn't say.
  int master_port = 0;      ///< The same for all ranks of a run, and seldom for another run; 0 like `master_addr`.
  std::string run;          ///< Of this start of the ranks, the same for all of them.
};

/// Open MPI's mpirun (OMPI_COMM_WORLD_*), else MPICH's mpiexec (PMI_RANK, PMI_SIZE, MPI_LOCALRANKID), else Slurm's srun
/// (SLURM_PROCID of a step with more than one task). Nothing without them; InvalidArgument names a variable that is
/// missing or wrong.
absl::StatusOr<std::optional<OuterPlacement>> ReadOuterLauncher();

}  // namespace lockstep
