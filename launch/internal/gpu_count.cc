#include "lockstep/launch/internal/gpu_count.h"

#include <absl/status/status.h>
#include <absl/strings/ascii.h>
#include <absl/strings/match.h>
#include <absl/strings/numbers.h>
#include <absl/strings/str_cat.h>
#include <absl/strings/str_split.h>
#include <absl/strings/string_view.h>
#include <dlfcn.h>
#include <glob.h>

#include <cstdlib>
#include <string>

namespace lockstep {
namespace {

/// -1: there is no NVML.
int CountByDriver() {
  void* library = dlopen("libnvidia-ml.so.1", RTLD_LAZY | RTLD_LOCAL);
  if (library == nullptr) return -1;
  const auto init = reinterpret_cast<int (*)()>(dlsym(library, "nvmlInit_v2"));
  const auto count = reinterpret_cast<int (*)(unsigned*)>(dlsym(library, "nvmlDeviceGetCount_v2"));
  unsigned number = 0;
  return init != nullptr && count != nullptr && init() == 0 && count(&number) == 0 ? static_cast<int>(number) : -1;
}

int CountDeviceFiles() {
  glob_t found{};
  const int number = glob("/dev/nvidia[0-9]*", 0, nullptr, &found) == 0 ? static_cast<int>(found.gl_pathc) : 0;
  globfree(&found);
  return number;
}

}  // namespace

absl::StatusOr<int> CountVisible(const std::string& visible, int present) {
  int number = 0;
  for (const auto part : absl::StrSplit(visible, ',', absl::SkipWhitespace())) {
    int index = 0;
    if (absl::SimpleAtoi(part, &index)) {
      if (index < 0) break;
      if (index >= present) {
        return absl::InvalidArgumentError(absl::StrCat("CUDA_VISIBLE_DEVICES=", visible, ": there is no GPU ", index,
                                                       ", only ", present, " from 0 on"));
      }
    } else {  // GPU-1234 and MIG-1234 are the driver's to know
      const absl::string_view name = absl::StripAsciiWhitespace(part);
      if (!absl::StartsWith(name, "GPU-") && !absl::StartsWith(name, "MIG-")) break;
    }
    ++number;
  }
  return number;
}

absl::StatusOr<int> CountGpus() {
  int present = CountByDriver();
  if (present < 0) present = CountDeviceFiles();
  const char* visible = std::getenv("CUDA_VISIBLE_DEVICES");
  if (visible == nullptr || present == 0) return present;
  return CountVisible(visible, present);
}

}  // namespace lockstep
