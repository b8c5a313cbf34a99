#pragma once

#include <absl/status/statusor.h>
#include <torch/nn/module.h>
#include <torch/optim/optimizer.h>

#include <map>
#include <string>

#include "lockstep/checkpoint/value.h"

namespace lockstep {

// What Python calls state_dict(), in Python's layout. The tensors of a saved state are the live ones, not copies.

/// Parameters and buffers under their dotted names, in the order of Python.
Value ModuleState(const torch::nn::Module& module);

/// Whether LoadModuleState would succeed, and its error if not.
absl::Status CheckModuleState(const Value& state, const torch::nn::Module& module);

/// Copies the tensors of `state` into the module, which keeps its devices and dtypes. InvalidArgument, before anything
/// is changed, when a name is missing or unknown or a shape differs; it names the first and says how many.
absl::Status LoadModuleState(const Value& state, torch::nn::Module& module);

/// `{"state": {index: {…}}, "param_groups": [{…, "params": [index, …]}]}` for SGD, Adam and AdamW.
/// InvalidArgument for other optimizers.
absl::StatusOr<Value> OptimizerState(const torch::optim::Optimizer& optimizer);

/// Takes over options and state. InvalidArgument when groups, numbers of parameters or shapes don't fit.
absl::Status LoadOptimizerState(const Value& state, torch::optim::Optimizer& optimizer);

/// Named numbers (a scaler's or stop criterion's state) as a dict, whole numbers as integers; and back.
Value NumbersState(const std::map<std::string, double>& numbers);
absl::StatusOr<std::map<std::string, double>> LoadNumbersState(const Value& state);

}  // namespace lockstep
