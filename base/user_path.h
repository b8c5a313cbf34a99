#pragma once

#include <string>

namespace lockstep {

/// A relative path as the user meant it, who may have started the program through `bazel run`, which starts it in
/// another folder and says in BUILD_WORKING_DIRECTORY where the user stood. Others, and the empty one, as they are.
std::string UserPath(const std::string& path);

}  // namespace lockstep
