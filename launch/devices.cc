#include "lockstep/launch/devices.h"

#include <absl/status/status.h>
#include <absl/strings/ascii.h>
#include <absl/strings/numbers.h>
#include <absl/strings/str_cat.h>
#include <absl/strings/str_split.h>

#include <algorithm>

namespace lockstep {

absl::StatusOr<std::vector<int>> ParseDeviceList(const std::string& flag, const std::string& text) {
  std::vector<int> devices;
  if (absl::StripAsciiWhitespace(text).empty()) return devices;
  for (const auto part : absl::StrSplit(text, ',')) {
    int device = -1;
    if (!absl::SimpleAtoi(part, &device) || device < 0) {
      return absl::InvalidArgumentError(
          absl::StrCat(flag, "=", text, ": '", part, "' is no device number; give a list such as 0,1"));
    }
    if (std::find(devices.begin(), devices.end(), device) != devices.end()) {
      return absl::InvalidArgumentError(absl::StrCat(flag, "=", text, ": device ", device, " stands twice"));
    }
    devices.push_back(device);
  }
  return devices;
}

}  // namespace lockstep
