#pragma once

#include <absl/status/status.h>
#include <absl/status/statusor.h>

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
  bool launched = false;     ///< A launcher set RANK and WORLD_SIZE.
  int restarts = 0;          ///< How often the launcher has started all ranks again.
  std::string launch_id;     ///< Of this start and its restarts: the launcher's name for it, or the launcher itself.
};

/// Reads the variables that torchrun and `lockstep_run` set: RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE,
/// MASTER_ADDR, MASTER_PORT, TORCHELASTIC_RESTART_COUNT, TORCHELASTIC_RUN_ID. With neither RANK nor WORLD_SIZE set it
/// is a world of one. InvalidArgument names the variable that is missing or wrong. Without LOCAL_RANK the run must be
/// on one host, that is MASTER_ADDR loopback.
absl::StatusOr<DistributedEnvironment> ReadEnvironment();

/// Whether `host` can be resolved; Unavailable after some seconds if not. A name that means nothing is a mistake, and
/// no host that comes up late.
absl::Status CheckHostName(const std::string& host);

/// Whether `host` is a name or address of the loopback interface.
bool IsLoopback(const std::string& host);

}  // namespace lockstep
