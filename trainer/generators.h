#pragma once

#include <absl/status/status.h>
#include <c10/core/Device.h>

#include <cstdint>

#include "lockstep/checkpoint/value.h"

namespace lockstep {

/// The states of LibTorch's default generators, of the CPU and, for CUDA, of the current device: {"cpu": bytes, "cuda":
/// bytes}, in the layout of Python's torch.get_rng_state.
Value GeneratorsState(c10::DeviceType device);

/// InvalidArgument for what is no such state. One of another kind of device is left out.
absl::Status LoadGeneratorsState(const Value& state, c10::DeviceType device);

/// Seeds the default generators of a rank that joins a run: from the run's seed, the rank and the step, so that no two
/// ranks or steps have the same.
void SeedGenerators(uint64_t seed, int rank, uint64_t step);

}  // namespace lockstep
