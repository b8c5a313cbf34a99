#include "lockstep/trainer/json_lines.h"

#include <absl/strings/str_cat.h>

#include <cerrno>
#include <cstring>
#include <nlohmann/json.hpp>

#include "lockstep/base/atomic_file.h"
#include "lockstep/base/status_macros.h"

namespace lockstep {
namespace {

absl::Status DropLines(const std::string& path, size_t first_epoch, size_t steps_done) {
  std::ifstream in(path);
  if (!in) return absl::OkStatus();
  std::string kept;
  for (std::string line; std::getline(in, line);) {
    const auto json = nlohmann::json::parse(line, nullptr, /*allow_exceptions=*/false);
    const auto count = [&](const char* key, size_t otherwise) {
      return json.contains(key) && json[key].is_number_unsigned() ? json[key].get<size_t>() : otherwise;
    };
    if (!json.is_object()) continue;
    const size_t epoch = count("epoch", first_epoch + 1), step = count("step", steps_done + 1);
    if (epoch < first_epoch || (epoch == first_epoch && step <= steps_done)) kept += line + "\n";
  }
  return WriteFileAtomically(path, kept);
}

}  // namespace

absl::Status JsonLines::Open(const std::string& path, size_t first_epoch, size_t steps_done) {
  path_ = path;
  LOCKSTEP_RETURN_IF_ERROR(DropLines(path, first_epoch, steps_done));
  file_ = std::ofstream(path, std::ios::app);
  if (file_) return absl::OkStatus();
  return absl::UnavailableError(absl::StrCat("file ", path, ": cannot be written: ", std::strerror(errno)));
}

absl::Status JsonLines::Add(const std::string& line) {
  file_ << line << std::endl;
  if (file_) return absl::OkStatus();
  const int error = errno;
  file_.clear();
  return absl::UnavailableError(absl::StrCat("file ", path_, ": cannot be written: ", std::strerror(error)));
}

}  // namespace lockstep
