#pragma once

#include <absl/status/statusor.h>

#include <string>

namespace lockstep {

/// NVIDIA's GPUs that a program started here may use: those in CUDA_VISIBLE_DEVICES where it is set, else all that the
/// driver's library (NVML) or /dev knows. InvalidArgument for a list that names one which isn't there.
absl::StatusOr<int> CountGpus();

/// How many of `present` GPUs a CUDA_VISIBLE_DEVICES of `visible` shows. CUDA's list ends before the first name that
/// means none, such as -1 or Slurm's NoDevFiles. InvalidArgument as above.
absl::StatusOr<int> CountVisible(const std::string& visible, int present);

}  // namespace lockstep
