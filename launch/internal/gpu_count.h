#pragma once

#include <absl/status/statusor.h>

namespace lockstep {

/// NVIDIA's GPUs that a program started here may use: those in CUDA_VISIBLE_DEVICES where it is set, else all that the
/// driver's library (NVML) or /dev knows. InvalidArgument for a list that names one which isn't there.
absl::StatusOr<int> CountGpus();

}  // namespace lockstep
