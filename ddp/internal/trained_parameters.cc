#include "lockstep/ddp/internal/trained_parameters.h"

#include <c10/util/Exception.h>

#include <cmath>
#include <set>

namespace lockstep::internal {

std::vector<NamedParameter> WithoutRepeats(std::vector<NamedParameter> parameters) {
  std::set<c10::TensorImpl*> seen;
  std::vector<NamedParameter> result;
  for (auto& named : parameters) {
    TORCH_CHECK(named.parameter.defined(), "reducer: parameter ", named.name, " is not defined");
    if (seen.insert(named.parameter.unsafeGetTensorImpl()).second) result.push_back(std::move(named));
  }
  return result;
}

std::vector<NamedParameter> TrainedParameters(std::vector<NamedParameter> parameters) {
  std::vector<NamedParameter> result;
  for (auto& named : WithoutRepeats(std::move(parameters))) {
    if (named.parameter.requires_grad()) result.push_back(std::move(named));
  }
  TORCH_CHECK(!result.empty(), "reducer: the module has no parameter that needs a gradient");
  return result;
}

void CheckWeight(std::optional<double> weight) {
  TORCH_CHECK(!weight || (std::isfinite(*weight) && *weight >= 0), "reducer: a weight is a number of at least 0, not ",
              weight.value_or(0));
}

}  // namespace lockstep::internal
