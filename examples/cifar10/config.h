#pragma once

#include <absl/status/statusor.h>

#include <cstdint>
#include <string>
#include <vector>

#include "lockstep/comm/environment.h"
#include "lockstep/config/config_fields.h"
#include "lockstep/optim/make_schedule.h"
#include "lockstep/trainer/trainer_options.h"

namespace cifar10 {

/// Everything that the configuration file and `--set` say.
struct Config {
  std::vector<std::string> device{"cpu"};
  size_t batch_size = 128;  ///< Of all ranks together.
  size_t num_workers = 2;
  double lr = 0.01, momentum = 0.9, weight_decay = 5e-4;
  std::string save_dir = "runs", data = "datasets";
  bool shared_folder = false;

  std::string model = "resnet50", pretrained;
  int64_t num_classes = 10;
  bool small_images = false, zero_init_residual = false, channels_last = true, sync_batch_norm = false;

  int64_t picture_size = 224, resize = 256, crop_padding = 4;
  double flip = 0, color_jitter = 0, random_erasing = 0, mixup = 0, cutmix = 0;

  double label_smoothing = 0, ema = 0;
  std::string amp = "off";
  lockstep::ScheduleOptions schedule;
  lockstep::TrainerOptions trainer;
  size_t patience = 0;

  size_t seed = 1, log_every = 20, keep_last = 2;
  bool save_failure_is_error = true, tensorboard = true, deterministic = false;
  int threads = 0;
  std::string backend = "auto";
  double timeout = 1800;

  // Of the command line.
  int64_t synthetic = 0;  ///< Training pictures of a stand-in data set; 0: the real one.
  std::string resume;     ///< latest, best, or a file; empty: a new run.
  int nproc_per_node = 0;
  std::string program;  ///< The last part of argv[0].

  std::string run_folder() const { return save_dir + "/" + program; }
};

/// Whether the kind has a total_steps, which is then the run's own length unless it is given.
bool WantsTotalSteps(const lockstep::ScheduleOptions& schedule);

/// Binds the names of the file to `config`.
void AddFields(Config& config, lockstep::ConfigFields& fields);

/// Reads the command line and the file. Ends the program for --help; errors say what is wrong in which line.
absl::Status ParseConfig(int argc, char** argv, Config& config, lockstep::ConfigFields& fields);

/// Where this process stands: the environment's ranks, or the ranks that it shall start itself.
struct Plan {
  lockstep::DistributedEnvironment environment;
  int ranks_to_spawn = 0;  ///< Over 1: this process only starts ranks.
  size_t batch_size = 0;   ///< Of this rank.
  int device_index = -1;   ///< A CUDA device; -1: the CPU.
};

/// Checks the configuration against the environment and the machine, which has `gpu_count` devices.
absl::StatusOr<Plan> MakePlan(const Config& config, int gpu_count);

}  // namespace cifar10
