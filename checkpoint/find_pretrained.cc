#include <absl/status/status.h>
#include <absl/strings/ascii.h>
#include <absl/strings/str_cat.h>
#include <absl/strings/str_join.h>
#include <pwd.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <map>
#include <tuple>
#include <utility>
#include <vector>

#include "lockstep/checkpoint/pretrained.h"

namespace lockstep {
namespace {

namespace fs = std::filesystem;

/// The files of torchvision's ResNets, the newest weights first.
std::vector<std::string> Published(const std::string& architecture) {
  static const auto& hashes = *new std::map<std::string, std::vector<std::string>>{
      {"resnet18", {"f37072fd"}},
      {"resnet34", {"b627a593"}},
      {"resnet50", {"11ad3fa6", "0676ba61"}},
      {"resnet101", {"cd907fc2", "63fe2227"}},
      {"resnet152", {"f82ba261", "394f9c45"}},
  };
  std::vector<std::string> names;
  if (const auto found = hashes.find(architecture); found != hashes.end()) {
    for (const auto& hash : found->second) names.push_back(absl::StrCat(architecture, "-", hash, ".pth"));
  }
  return names;
}

/// `<architecture>-<8 hex digits>.pth`
bool IsWeightsOf(const std::string& architecture, const std::string& name) {
  const std::string begin = architecture + "-";
  constexpr size_t kDigits = 8;
  if (name.size() != begin.size() + kDigits + 4 || name.rfind(begin, 0) != 0) return false;
  const std::string digits = name.substr(begin.size(), kDigits);
  return std::all_of(digits.begin(), digits.end(),
                     [](char c) { return absl::ascii_isdigit(c) || (c >= 'a' && c <= 'f'); }) &&
         name.substr(begin.size() + kDigits) == ".pth";
}

/// An environment variable, or `otherwise` where it isn't set or empty.
std::string Environment(const char* name, const std::string& otherwise) {
  const char* value = std::getenv(name);
  return value != nullptr && *value != '\0' ? value : otherwise;
}

std::string WithHome(const std::string& path) {
  if (path != "~" && path.rfind("~/", 0) != 0) return path;
  const passwd* user = getpwuid(getuid());
  return Environment("HOME", user != nullptr ? user->pw_dir : "") + path.substr(1);
}

std::string HubFolder() {
  const std::string home = Environment("TORCH_HOME", Environment("XDG_CACHE_HOME", "~/.cache") + "/torch");
  return WithHome(home) + "/hub/checkpoints";
}

}  // namespace

absl::StatusOr<std::string> FindPretrained(const std::string& path, const std::string& architecture) {
  const std::string place = path.empty() ? HubFolder() : WithHome(path);
  std::error_code error;
  const auto status = fs::status(place, error);
  const bool missing = status.type() == fs::file_type::not_found;
  if (error && !missing) return absl::UnavailableError(absl::StrCat(place, ": ", error.message()));
  if (!path.empty() && missing) {
    return absl::NotFoundError(absl::StrCat("pretrained weights: there is no file ", place));
  }
  if (!path.empty() && !fs::is_directory(status)) return place;

  const std::vector<std::string> published = Published(architecture);
  using Rank = std::tuple<std::ptrdiff_t, fs::file_time_type::duration, std::string>;  // the least is the best
  std::vector<Rank> found;
  if (!missing) {
    for (fs::directory_iterator entry(place, error), end; !error && entry != end; entry.increment(error)) {
      const std::string name = entry->path().filename().string();
      std::error_code unreadable;
      if (!IsWeightsOf(architecture, name) || !entry->is_regular_file(unreadable)) continue;
      const auto changed = entry->last_write_time(unreadable).time_since_epoch();
      found.emplace_back(std::find(published.begin(), published.end(), name) - published.begin(), -changed, name);
    }
    if (error) return absl::UnavailableError(absl::StrCat(place, ": ", error.message()));
  }
  if (!found.empty())
    return absl::StrCat(place, "/", std::get<std::string>(*std::min_element(found.begin(), found.end())));
  return absl::NotFoundError(absl::StrCat(
      "there are no pretrained weights of '", architecture, "': ", missing ? "there is no folder " : "no such file in ",
      place, "; wanted: ",
      published.empty() ? "" : absl::StrCat(absl::StrJoin(published, " or "), " of torchvision, or another "),
      architecture, "-<8 hex digits>.pth; or name a file"));
}

}  // namespace lockstep
