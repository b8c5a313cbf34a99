#pragma once

#include <absl/status/statusor.h>
#include <torch/nn/module.h>
#include <torch/optim/optimizer.h>

#include <map>
#include <string>
#include <vector>

#include "lockstep/checkpoint/value.h"

namespace lockstep {

// What Python calls state_dict(), in Python's layout. The tensors of a saved state are the live ones, not copies.

/// Parameters and buffers under their dotted names, in the order of Python.
Value ModuleState(const torch::nn::Module& module);

struct LoadModuleOptions {
  bool strict = true;  ///< Off: what fits is loaded, the rest is left as it is.
  /// Taken off the front of each of the state's names that has it, such as "module." of Python's
  /// DistributedDataParallel.
  std::string prefix;
};

/// What of a state and a module doesn't fit: names, and for wrong shapes or kinds what is wrong.
struct ModuleStateDifferences {
  std::vector<std::string> missing;     ///< From the state.
  std::vector<std::string> unexpected;  ///< Not in the module.
  std::vector<std::string> wrong;       ///< In both, but no tensor or of another shape.
  bool empty() const { return missing.empty() && unexpected.empty() && wrong.empty(); }
  std::string ToString() const;  ///< In one line; of many the first few, and how many more there are.
};

/// InvalidArgument when the state is no dict.
absl::StatusOr<ModuleStateDifferences> CompareModuleState(const Value& state, const torch::nn::Module& module,
                                                          const std::string& prefix = "");

/// Whether LoadModuleState would succeed, and its error if not.
absl::Status CheckModuleState(const Value& state, const torch::nn::Module& module,
                              const LoadModuleOptions& options = {});

/// Copies the tensors of `state` into the module, which keeps its devices and dtypes. InvalidArgument, before anything
/// is changed, when something doesn't fit; it lists what doesn't. With `strict` off only a state that is no
/// dict is an error; CompareModuleState tells what was left out.
absl::Status LoadModuleState(const Value& state, torch::nn::Module& module, const LoadModuleOptions& options = {});

/// `{"state": {index: {…}}, "param_groups": [{…, "params": [index, …]}]}` for SGD, Adam and AdamW.
/// InvalidArgument for other optimizers.
absl::StatusOr<Value> OptimizerState(const torch::optim::Optimizer& optimizer);

/// Takes over options and state. InvalidArgument when groups, numbers of parameters or shapes don't fit.
absl::Status LoadOptimizerState(const Value& state, torch::optim::Optimizer& optimizer);

/// Named numbers (a scaler's or stop criterion's state) as a dict, whole numbers as integers; and back.
Value NumbersState(const std::map<std::string, double>& numbers);
absl::StatusOr<std::map<std::string, double>> LoadNumbersState(const Value& state);

}  // namespace lockstep
