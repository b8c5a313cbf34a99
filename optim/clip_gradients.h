#pragma once

#include <ATen/core/Tensor.h>
#include <torch/optim/optimizer.h>

#include <optional>
#include <vector>

#include "lockstep/comm/collectives.h"

namespace lockstep {

// Gradients are clipped after a LossScaler's Unscale, which takes the scale out of them and brings master weights'
// gradients to the optimizer's parameters. A parameter without a gradient counts as none, and a sparse gradient by the
// values it has once its indices are unique.

struct GradientNormOptions {
  double norm_type = 2;  ///< The p of the p-norm: over 0, or infinity for the largest absolute value.
  /// Where each rank has some of the gradients (Reducer::shard_group): the norm is that over all ranks', and taking it
  /// is collective. Null: these gradients are all.
  ProcessGroupPtr shard_group;
  /// Of the result and of its reduction over shards; nothing: the first gradient's, or else the first parameter's. To
  /// be given where a rank may have no parameter at all.
  std::optional<at::Device> device;
};

/// The norm over all gradients as if they were one vector: a scalar, float or double, which no device is waited for.
/// Half-precision gradients are summed in float.
at::Tensor GradientNorm(const std::vector<at::Tensor>& parameters, const GradientNormOptions& options = {});

/// Scales the gradients, in place, so that their norm is at most `max_norm`, as `torch.nn.utils.clip_grad_norm_` does:
/// by max_norm / (norm + 1e-6) where that is below 1. Returns the norm before. A norm that is not finite leaves
/// gradients of no use: hand `norm.isfinite().logical_not()` to LossScaler::AddFoundInf, and the step is skipped.
/// Throws c10::Error for a negative `max_norm`.
at::Tensor ClipGradientNorm(const std::vector<at::Tensor>& parameters, double max_norm,
                            const GradientNormOptions& options = {});

/// Clamps each number of the gradients, in place, into [-max_value, max_value]. NaN stays NaN. Throws c10::Error for a
/// negative `max_value`.
void ClipGradientValue(const std::vector<at::Tensor>& parameters, double max_value);

/// The parameters of all groups of the optimizer, to clip over all of them; over one group: its params().
std::vector<at::Tensor> AllParameters(const torch::optim::Optimizer& optimizer);

}  // namespace lockstep
