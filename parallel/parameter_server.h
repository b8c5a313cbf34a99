#pragma once

#include <absl/status/status.h>
#include <absl/status/statusor.h>
#include <torch/nn/module.h>

#include <cstdint>
#include <memory>

#include "lockstep/checkpoint/checkpointer.h"
#include "lockstep/checkpoint/value.h"
#include "lockstep/comm/process_group.h"
#include "lockstep/parallel/parameter_server_layout.h"
#include "lockstep/parallel/parameter_server_optimizer_factory.h"
#include "lockstep/parallel/parameter_server_staleness.h"

namespace lockstep {

struct ParameterServerOptions {
  /// Of the connections with each worker: backend, timeout (of each message: no worker may be silent for longer).
  ProcessGroupOptions connection;
  /// Of server 0, which must outlive the server: saves the whole state at the end, and after each so many steps; null:
  /// nothing is saved. Without a group, since other servers have no part in it.
  Checkpointer* checkpointer = nullptr;
  int64_t save_every = 0;  ///< 0: only at the end.
};

/// A server of a run with a parameter server (see ParameterServerLayout): holds the parameters and buffers of its shard
/// and steps its own optimizer over them. Each worker is served through a group of the two alone, by a thread.
///
/// The rank of a server makes the same module as the workers do; the tensors of its shard are served, and are the
/// initial values for all. Buffers, such as batch norm's statistics, take the value of worker 0 with each synchronous
/// step, as with DistributedDataParallel, and of the worker whose step it is otherwise.
class ParameterServer {
 public:
  /// Of `group`, the whole world's, only the store is used. `module` outlives the server and lives on the CPU.
  /// Collective, with ParameterServerOptimizer::Connect on the workers. Errors: those of NewSubGroup, and
  /// InvalidArgument that names in what a worker's layout, optimizer, parameters or buffers differ from the server's.
  static absl::StatusOr<std::unique_ptr<ParameterServer>> Connect(const ProcessGroupPtr& group,
                                                                  const ParameterServerLayout& layout,
                                                                  torch::nn::Module& module,
                                                                  const OptimizerFactory& make_optimizer,
                                                                  const ParameterServerOptions& options = {});
  ~ParameterServer();
  ParameterServer(const ParameterServer&) = delete;
  ParameterServer& operator=(const ParameterServer&) = delete;

  /// Before Serve, on all servers: goes on from a checkpoint of a run with any number of servers, or of the trainer.
  /// InvalidArgument, and nothing is changed, when the model or the optimizer doesn't fit.
  absl::Status Restore(const Value& checkpoint);

  /// Serves until all workers have finished; call it once. Afterwards server 0's module has all servers' values.
  ///
  /// Errors, Unavailable with the name of who is to blame: synchronous, a worker that is gone or has given up, which
  /// the other workers get told; asynchronous, when no worker has finished (those that are gone are named in the log,
  /// and the others go on); a server that is gone. What the optimizer throws is an error of all. The checkpointer's.
  absl::Status Serve();

  int64_t steps() const;  ///< Also those before the checkpoint.
  ParameterServerStaleness staleness() const;

 private:
  class Impl;
  explicit ParameterServer(std::unique_ptr<Impl> impl);
  const std::unique_ptr<Impl> impl_;
};

}  // namespace lockstep
