#pragma once

#include <string>

namespace lockstep {

/// Where the ranks of this host stand among all hosts' ranks.
struct Placement {
  int node_rank = 0, num_nodes = 1;
  int first_rank = 0, world_size = 1;            ///< The host's first rank, and the number of ranks on all hosts.
  int first_role_rank = 0, role_world_size = 1;  ///< The same, counted among the hosts with the same role.
  std::string master_addr;                       ///< Host of rank 0.
  int master_port = 0;                           ///< Port of rank 0's store.
  int restarts = 0;                              ///< How often all ranks have been started again after a failure.
  int regroups = 0;                              ///< How often, beside that, because a host had come.
};

}  // namespace lockstep
