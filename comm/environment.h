#pragma once

#include <absl/status/status.h>
#include <absl/status/statusor.h>

#include <chrono>
#include <string>

namespace lockstep {

/// Where this process stands among the ranks of a run.
struct DistributedEnvironment {
  int rank = 0;              ///< Among all ranks; in [0, world_size).
  int world_size = 1;        ///< Number of ranks on all hosts.
  int local_rank = 0;        ///< Among the ranks of this host; chooses the device, never the shard or the printer.
  int local_world_size = 1;  ///< Number of ranks on this host.
  std::string master_addr;   ///< Host of rank 0; empty when not launched.
  int master_port = 0;       ///< Port of rank 0's store; 0 when not launched.
  bool agent_store = false;  ///< The launcher itself holds the store (torchrun does); rank 0 then only connects.
  bool launched = false;     ///< A launcher has said which rank this is.
  int restarts = 0;          ///< How often the launcher has started all ranks again.
  std::string launch_id;     ///< Of this start and its restarts: the launcher's name for it, or the launcher itself.
};

/// Reads what the launcher has set, the first of these that is there:
///  - RANK and WORLD_SIZE: torchrun, `lockstep_run`, Kubernetes' PyTorchJob, by hand; with LOCAL_RANK,
///  LOCAL_WORLD_SIZE,
///    MASTER_ADDR, MASTER_PORT and TORCHELASTIC_*. Without LOCAL_RANK the run must be on one host, that is MASTER_ADDR
///    loopback, or have one process in each of Kubernetes' pods;
///  - OMPI_COMM_WORLD_*: Open MPI's mpirun;
///  - PMI_RANK, PMI_SIZE and MPI_LOCALRANKID: MPICH's mpiexec;
///  - SLURM_PROCID and friends: srun with more than one task. The first host of the list is rank 0's.
/// The last three take MASTER_ADDR and MASTER_PORT where they are set. On one host, and with srun on several, the ranks
/// agree without them.
/// Beside RANK and WORLD_SIZE the last three may be incomplete, and are then left out of account.
/// With none of them it is a world of one. InvalidArgument names a variable that is missing or wrong, or two that don't
/// agree.
absl::StatusOr<DistributedEnvironment> ReadEnvironment();

/// Which of this process's `visible_devices` devices is this rank's: that of its local rank, or the only one, where
/// srun or mpirun has shown it to this rank alone (CUDA_VISIBLE_DEVICES). InvalidArgument when there are too few.
absl::StatusOr<int> LocalDevice(const DistributedEnvironment& environment, int visible_devices);

/// For launchers older than torchrun, which pass the local rank as an argument: takes `--local_rank=N`,
/// `--local-rank=N` and the same with the number as an argument of its own out of argv, up to an argument `--`, and
/// sets LOCAL_RANK. InvalidArgument when N is no number, or LOCAL_RANK is set to another one. Call it before flags are
/// read and before there are other threads.
absl::Status TakeLocalRankFlag(int* argc, char** argv);

/// Whether `host` can be resolved. Tries for as long as `timeout`, since a host that comes up late may have no name
/// before, and says so in the log after some seconds; then Unavailable.
absl::Status CheckHostName(const std::string& host, std::chrono::milliseconds timeout = std::chrono::seconds(8));

/// Whether `host` is a name or address of the loopback interface.
bool IsLoopback(const std::string& host);

}  // namespace lockstep
