#pragma once

#include <ATen/core/Tensor.h>

#include "lockstep/comm/collectives.h"

namespace lockstep {

/// The sum over all ranks of sparse (COO) tensors of one shape, which may have other entries on each rank; coalesced.
/// Two all-gathers of as much as the rank with the most entries has. A null group coalesces. Collective.
at::Tensor SparseAllReduce(const at::Tensor& tensor, const ProcessGroupPtr& group);

}  // namespace lockstep
