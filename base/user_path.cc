#include "lockstep/base/user_path.h"

#include <cstdlib>
#include <filesystem>

namespace lockstep {

std::string UserPath(const std::string& path) {
  const char* folder = std::getenv("BUILD_WORKING_DIRECTORY");
  if (path.empty() || path[0] == '/' || folder == nullptr) return path;
  return (std::filesystem::path(folder) / path).lexically_normal().string();
}

}  // namespace lockstep
