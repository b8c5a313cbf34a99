#pragma once

#include <absl/status/statusor.h>
#include <torch/nn/module.h>
#include <torch/optim/optimizer.h>

#include <map>
#include <string>

#include "lockstep/amp/loss_scaler.h"
#include "lockstep/checkpoint/checkpoint_writer.h"
#include "lockstep/checkpoint/stateful.h"
#include "lockstep/checkpoint/split_state.h"
#include "lockstep/checkpoint/stop_criterion.h"
#include "lockstep/checkpoint/value.h"
#include "lockstep/comm/collectives.h"

namespace lockstep {

/// What a training run is made of, for checkpoints. Nothing is owned.
struct TrainingParts {
  torch::nn::Module* module = nullptr;
  torch::optim::Optimizer* optimizer = nullptr;
  LossScaler* scaler = nullptr;
  StopCriterion* stop = nullptr;
  std::map<std::string, Stateful*> others{};  ///< By the names of their states, such as a communication hook.
  SplitState* split = nullptr;                ///< Where `module` and `optimizer` are a part of the model's only.
};

/// {model, optimizer, scaler, epoch, best, stop, master_weights, others}: `epoch` is the last finished one, counted
/// from 1, `best` the best value of the stop criterion's metric, `stop` the criterion's state, `master_weights` a list
/// of the optimizer's where it has such. Collective where there are others,
/// or the module's or optimizer's state is spread over the ranks.
absl::StatusOr<Value> SaveTrainingState(const TrainingParts& parts, size_t epoch);

/// Rank 0 writes the state to `path`; every rank knows whether it worked. Collective.
absl::Status SaveOnRankZero(const TrainingParts& parts, size_t epoch, const std::string& path, CheckpointWriter& writer,
                            const ProcessGroupPtr& group);

/// Puts a saved state back and returns its epoch. Errors name the part that doesn't fit. Of `others`, those that the
/// checkpoint has not are left as they are; master weights that it has not are made from the model's.
absl::StatusOr<size_t> LoadTrainingState(const Value& checkpoint, const TrainingParts& parts);

}  // namespace lockstep
