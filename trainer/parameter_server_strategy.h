#pragma once

#include <string>
#include <utility>

#include "lockstep/parallel/parameter_server_layout.h"
#include "lockstep/trainer/strategy.h"

namespace lockstep {

/// A worker of a run with parameter servers, whose optimizer is a ParameterServerOptimizer. (A server runs no trainer,
/// but ParameterServer::Serve.)
class ParameterServerStrategy : public Strategy {
 public:
  /// `world`: all ranks, servers too. `workers`: NewWorkerGroup's. Null: each worker decides for itself when to stop
  /// and counts its own metrics, as asynchronous ones better do.
  ParameterServerStrategy(torch::nn::Module& module, const ParameterServerLayout& layout, const ProcessGroupPtr& world,
                          ProcessGroupPtr workers = nullptr)
      : module_(module),
        asynchronous_(layout.mode == ParameterServerLayout::Mode::kAsynchronous),
        share_{layout.worker_index(GetRank(world)), layout.num_workers(GetWorldSize(world))},
        workers_(std::move(workers)) {}

  std::string name() const override { return "parameter_server"; }
  torch::nn::Module& wrapper() override { return module_; }
  ProcessGroupPtr group() const override { return workers_; }
  DataShare share() const override { return share_; }
  int shares_of_a_step() const override { return asynchronous_ ? 1 : share_.count; }

 private:
  torch::nn::Module& module_;
  const bool asynchronous_;
  const DataShare share_;
  const ProcessGroupPtr workers_;
};

}  // namespace lockstep
