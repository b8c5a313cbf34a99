#pragma once

#include <ATen/core/Tensor.h>
#include <torch/optim/optimizer.h>

#include <string>
#include <vector>

namespace lockstep::internal {

/// The optimizer's gradients, those of master weights taken over, in lists of one device and dtype each, to be changed
/// in place: of sparse ones the values, of complex ones both parts. Throws for float16, in the name of `scaler`.
std::vector<std::vector<at::Tensor>> GradientsByKind(torch::optim::Optimizer& optimizer, const char* scaler);

/// How far an optimizer is since the last Update.
enum class Stage { kReady, kUnscaled, kStepped };

/// Throw, in the name of `scaler`, when the call doesn't come at this stage.
void CheckMayUnscale(Stage stage, const torch::optim::Optimizer& optimizer, const char* scaler);
void CheckMayStep(Stage stage, const torch::optim::Optimizer& optimizer, const char* scaler);

/// Throws when the optimizer shall run a closure, or can't do without, and says why that doesn't go with `scaler`.
void RefuseClosure(const torch::optim::Optimizer& optimizer, bool closure, const char* scaler);

/// Whether a scale is over 0 and finite, also as the float that it becomes.
bool IsScale(double scale);

/// For errors: the optimizer's type, and how many parameters it has.
std::string Describe(const torch::optim::Optimizer& optimizer);

}  // namespace lockstep::internal
