#pragma once

#include <absl/status/statusor.h>
#include <torch/optim/schedulers/lr_scheduler.h>

#include <cstddef>
#include <cstdint>
#include <string>

#include "lockstep/checkpoint/value.h"
#include "lockstep/comm/collectives.h"
#include "lockstep/ddp/distributed_data_parallel_base.h"
#include "lockstep/trainer/gradient_step.h"
#include "lockstep/trainer/run_progress.h"
#include "lockstep/trainer/training_state.h"

namespace lockstep {

/// Everything that has a state in a run of the trainer. Nothing is owned; scheduler and ddp may be null.
struct RunParts {
  TrainingParts state;
  torch::optim::LRScheduler* scheduler = nullptr;
  DistributedDataParallelBase* ddp = nullptr;
  GradientStep* gradients = nullptr;
};

/// The training state (see SaveTrainingState) and with it, under "run": {"format", "version", "config", "progress",
/// "schedule", "reducer"}, so that a run goes on from any batch as if it had not stopped. Whole on rank 0. Collective.
absl::StatusOr<Value> SaveRunState(const RunParts& parts, const RunProgress& progress, const std::string& config,
                                   const ProcessGroupPtr& group);

/// Puts it back, but for the random generators (see TakeGenerators), which are only looked at. Of a training state
/// alone: goes on with the epoch after it. What can't be kept, as in a world of another size, is said in rank 0's log.
/// The same result on all ranks. Errors as LoadTrainingState's. Collective.
absl::StatusOr<LoadedRun> LoadRunState(const Value& checkpoint, const RunParts& parts, c10::DeviceType device,
                                       const ProcessGroupPtr& group);

/// Gives this rank the random generators that it had; one that the saving world had not gets its own, from seed, rank
/// and step.
absl::Status TakeGenerators(const LoadedRun& loaded, c10::DeviceType device, uint64_t seed,
                            const ProcessGroupPtr& group);

/// Rank 0 says that an epoch's last step, begun by the run that saved it, got no batch to be finished with.
void LogUnfinishedStep(size_t epoch, const ProcessGroupPtr& group);

/// Rank 0 says that an epoch begins again since nobody knows what is left of it.
void LogEpochAgain(size_t epoch, const ProcessGroupPtr& group);

}  // namespace lockstep
