#pragma once

#include <ATen/core/Tensor.h>

#include "lockstep/comm/collectives.h"

namespace lockstep {

/// What all ranks together have of some samples.
struct GatheredOutputs {
  at::Tensor indices;  ///< Of the samples in the data set, each once, ascending; int64 on the CPU.
  at::Tensor outputs;  ///< Row i is of sample indices[i]; on the device of this rank's outputs.
};

/// Brings the ranks' outputs together in the data set's original order, on all ranks, for metrics that are no mean over
/// samples (area under a curve, F1, …). `outputs` has this rank's samples in its first dimension, and `indices`, int64,
/// says which of the data set they are: what the sampler gave. Ranks may have any numbers of samples. A sample that
/// several have, or one has several times, as padding does, counts once: the row of the lowest rank, its first one.
///
/// A rank without samples gives an empty tensor on its device, or an undefined one (on the CPU); of its shape only that
/// counts, and its dtype doesn't. Where no rank has any, the outputs are this rank's own.
///
/// Throws c10::Error, on all ranks alike, where a rank's indices don't fit its outputs or are negative, and where the
/// ranks' outputs differ in dtype or in the shape of a row. Each rank needs memory for `world size × largest share`.
/// The result has no gradient. Collective.
GatheredOutputs GatherForMetrics(const at::Tensor& outputs, const at::Tensor& indices, const ProcessGroupPtr& group);

}  // namespace lockstep
