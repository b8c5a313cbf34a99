#pragma once

#include <string>

namespace lockstep {

/// The process that started this one, by its number and the time of its start.
std::string ParentProcess();

/// The nearest ancestor whose environment doesn't have `variable`: whoever gave it to us, whatever shells are between.
std::string AncestorWithout(const std::string& variable);

}  // namespace lockstep
