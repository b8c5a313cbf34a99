#pragma once

#include <absl/status/statusor.h>

#include <cstddef>
#include <memory>

#include "lockstep/comm/collectives.h"
#include "lockstep/data/tensor_loader.h"
#include "lockstep/examples/cifar10/config.h"

namespace cifar10 {

struct Data {
  std::unique_ptr<lockstep::TensorLoader> train, validation;
};

/// This rank's share of CIFAR-10, or of the stand-in, which is made in the data folder where it isn't there yet: local
/// rank 0 of each host prepares it while the others wait. Errors, on all ranks: what is missing, and how to get it.
/// Collective.
absl::StatusOr<Data> OpenData(const Config& config, const Plan& plan, const lockstep::ProcessGroupPtr& group);

}  // namespace cifar10
