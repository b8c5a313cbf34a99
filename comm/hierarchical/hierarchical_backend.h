#pragma once

#include <absl/status/statusor.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include <chrono>
#include <functional>
#include <memory>

#include "lockstep/comm/hosts.h"

namespace lockstep {

class LivenessMonitor;

/// Makes a backend over the network for some ranks, who all call it: MakeGlooBackend, or one of your own for CPU
/// tensors.
using MakeNetworkBackend = std::function<c10::intrusive_ptr<c10d::Backend>(const c10::intrusive_ptr<c10d::Store>& store,
                                                                           int rank, int world_size)>;

struct HierarchicalBackendOptions {
  MakeNetworkBackend make_network_backend;
  std::shared_ptr<LivenessMonitor> monitor;                        ///< Of the whole group.
  std::chrono::milliseconds timeout = std::chrono::seconds(1800);  ///< Of the meeting and of every collective.
  bool check_shapes = false;                                       ///< As for MakeShmBackend, inside of each host.
};

/// A backend for CPU tensors of ranks on several hosts: shared memory inside of each host, the network between them, so
/// that of each tensor one copy a host travels instead of one a rank. Hosts may have any ranks, and any number of them.
/// Collective; `hosts` comes from FindHosts.
///
///  - All-reduce, reduce, broadcast and barrier go by the two levels; so do all-gather and reduce-scatter where all
///  hosts
///    have as many ranks. Everything else goes over one network backend of all ranks.
///  - All ranks' results have the same bits. Half types are added in float inside of a host, in the half type between
///    hosts; a mean of them doesn't leave their range on the way. What is defined is what Gloo defines.
///  - `allocateTensor` gives memory that the ranks of this host share, of which collectives copy nothing inside of it;
///    supported where the host has more than one rank.
///  - Collectives run in the order in which they are asked for; whoever waits for one runs it, and a thread what nobody
///    waits for. Sends and receives move by the side of that.
///  - A rank whose process ends is named by those of its host at once and by the others within about 10 seconds; so is
///  a
///    host that is out of reach. After an error the group is of no use any more.
///
/// Errors: FailedPrecondition, on all ranks, when ranks of a host can't share memory after all; Unavailable when ranks
/// don't come or the network backend can't be made. Thread-safe; the order of collectives must still be the same on all
/// ranks.
absl::StatusOr<c10::intrusive_ptr<c10d::Backend>> MakeHierarchicalBackend(const c10::intrusive_ptr<c10d::Store>& store,
                                                                          int rank, const Hosts& hosts,
                                                                          const HierarchicalBackendOptions& options);

}  // namespace lockstep
