#pragma once

#include <absl/status/statusor.h>

#include <cstdint>
#include <string>
#include <vector>

#include "lockstep/comm/environment.h"

namespace mnist {

/// Everything the command line says.
struct Config {
  std::vector<int> gpus;  ///< Of --gpu; empty: all, or the CPU.
  int epochs, batch_size, patience, port, log_every, nproc_per_node, threads;
  double lr, weight_decay, pixel_scale;
  /// On the command line; a resumed run keeps its own otherwise.
  bool lr_given, weight_decay_given, batch_size_given, accumulate_given;
  uint64_t seed;
  std::string data;  ///< A CSV file or a folder of IDX files.
  std::string master_addr, pt_path, run_dir, resume, backend, amp, flight_recorder, matmul_precision, scale_lr;
  bool sync_batch_norm, check_collectives, detect_anomaly, deterministic, decay_biases_and_norms;
  double loss_scale;  ///< 0: dynamic.
  double max_grad_norm, max_grad_value;
  int accumulate, check_parameters_every;
  std::string profile;            ///< FIRST:LAST, or nothing.
  int64_t global_batch_size = 0;  ///< Of all ranks when the run began; 0: the batch size times their number.
  // Checkpoints.
  int save_every_steps, save_every_epochs, keep_last, stop_exit_code, max_restarts;
  double save_every_minutes;
  bool save_failure_is_error;
  double timeout_seconds;
};

/// Where this process stands: the environment's ranks, or the ranks that it shall start itself.
struct Plan {
  lockstep::DistributedEnvironment environment;
  int ranks_to_spawn = 0;  ///< Over 1: this process only starts ranks.
  bool cuda = false;
  int device_index = 0;  ///< Of this rank, when `cuda`.
};

/// Parses argv. Ends the program for --help; errors are InvalidArgument with one line.
absl::StatusOr<Config> ParseConfig(int argc, char** argv);

/// Checks the configuration against the environment and the machine, which has `gpu_count` devices.
absl::StatusOr<Plan> MakePlan(const Config& config, int gpu_count);

/// The configuration as JSON, for the run's folder.
std::string ConfigJson(const Config& config, const Plan& plan);

}  // namespace mnist
