#pragma once

#include <optional>
#include <vector>

#include "lockstep/ddp/reducer.h"

namespace lockstep::internal {

/// Each parameter once: one that two modules share has one gradient.
std::vector<NamedParameter> WithoutRepeats(std::vector<NamedParameter> parameters);

/// Those that need a gradient, each once. Throws when there is none.
std::vector<NamedParameter> TrainedParameters(std::vector<NamedParameter> parameters);

/// Throws unless it is nothing or a finite number of at least 0.
void CheckWeight(std::optional<double> weight);

}  // namespace lockstep::internal
