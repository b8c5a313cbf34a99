#pragma once

#include <string>
#include <vector>

#include "lockstep/comm/collectives.h"
#include "lockstep/ddp/reducer.h"

namespace lockstep {

/// Throws, on every rank, unless all ranks give the same parameters and buffers (names, shapes, dtypes, strides, frozen
/// or not, in the same order) and the same `options`; the error names the first that differs and the ranks. Collective.
void CheckParametersAgree(const std::vector<NamedParameter>& parameters, const ProcessGroupPtr& group,
                          const std::vector<NamedParameter>& buffers = {}, const std::string& options = "");

/// Throws, on every rank, unless all ranks' parameters have the same values bit for bit; the error names the first that
/// has not and the ranks. Compares sums over the bits of each. Collective.
void CheckParametersEqual(const std::vector<NamedParameter>& parameters, const ProcessGroupPtr& group);

/// In place: `root`'s values on all ranks, a few messages for all tensors. Collective.
void BroadcastTensors(const std::vector<at::Tensor>& tensors, const ProcessGroupPtr& group, int root = 0);

}  // namespace lockstep
