#pragma once

#include <string>
#include <vector>

namespace lockstep::internal {

/// The known name that `name` was likely meant to be, or nothing: one that differs in few letters, also in its part
/// behind the last dot alone (`max_steps` for `trainer.max_steps`), or that is made of the initials (`lr` for
/// `learning_rate`).
std::string ClosestName(const std::string& name, const std::vector<std::string>& known);

}  // namespace lockstep::internal
