#pragma once

#include <vector>

#include "lockstep/comm/collectives.h"
#include "lockstep/ddp/reducer.h"

namespace lockstep {

/// Throws, on every rank, unless all ranks give the same names, shapes, dtypes and strides in the same order; the
/// error names the first that differs and the ranks. Collective.
void CheckParametersAgree(const std::vector<NamedParameter>& parameters, const ProcessGroupPtr& group);

/// In place: `root`'s values on all ranks, a few messages for all tensors. Collective.
void BroadcastTensors(const std::vector<at::Tensor>& tensors, const ProcessGroupPtr& group, int root = 0);

}  // namespace lockstep
