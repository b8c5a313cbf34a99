#include "lockstep/config/internal/yaml_source.h"

#include <absl/status/status.h>
#include <absl/strings/str_cat.h>
#include <yaml-cpp/depthguard.h>
#include <yaml-cpp/eventhandler.h>
#include <yaml-cpp/yaml.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "lockstep/config/internal/quote.h"

namespace lockstep::internal {
namespace {

/// Where documents begin, and nothing else of them.
class DocumentStarts : public YAML::EventHandler {
 public:
  void OnDocumentStart(const YAML::Mark& mark) override { last = mark; }
  void OnDocumentEnd() override {}
  void OnNull(const YAML::Mark&, YAML::anchor_t) override {}
  void OnAlias(const YAML::Mark&, YAML::anchor_t) override {}
  void OnScalar(const YAML::Mark&, const std::string&, YAML::anchor_t, const std::string&) override {}
  void OnSequenceStart(const YAML::Mark&, const std::string&, YAML::anchor_t, YAML::EmitterStyle::value) override {}
  void OnSequenceEnd() override {}
  void OnMapStart(const YAML::Mark&, const std::string&, YAML::anchor_t, YAML::EmitterStyle::value) override {}
  void OnMapEnd() override {}

  YAML::Mark last;
};

}  // namespace

absl::StatusOr<YamlSource> YamlSource::File(const std::string& path) {
  constexpr size_t kLargest = 1 << 20;
  std::error_code error;
  const auto status = std::filesystem::status(path, error);
  if (status.type() == std::filesystem::file_type::not_found) {
    return absl::NotFoundError(absl::StrCat(path, ": there is no such file"));
  }
  if (error) return absl::UnavailableError(absl::StrCat(path, ": ", error.message()));
  if (!std::filesystem::is_regular_file(status)) {
    return absl::InvalidArgumentError(
        absl::StrCat(path, ": is ", std::filesystem::is_directory(status) ? "a folder" : "no regular file"));
  }
  errno = 0;
  std::ifstream in(path, std::ios::binary);
  std::string text(kLargest + 1, '\0');
  if (!in || (in.read(text.data(), static_cast<std::streamsize>(text.size())), in.bad())) {
    return absl::UnavailableError(absl::StrCat(path, ": can't be read: ", std::strerror(errno)));
  }
  text.resize(static_cast<size_t>(in.gcount()));
  if (text.size() > kLargest) {
    return absl::InvalidArgumentError(absl::StrCat(path, ": is larger than 1 MiB, so it is no configuration"));
  }
  return YamlSource(path, std::move(text), true);
}

std::string YamlSource::At(const YAML::Mark& mark) const {
  return has_lines_ && !mark.is_null() ? absl::StrCat(name_, ":", mark.line + 1, ":", mark.column + 1, ": ")
                                       : absl::StrCat(name_, ": ");
}

absl::StatusOr<YAML::Node> YamlSource::Parse() const {
  if (const size_t bad = FirstBadByte(text_); bad != std::string::npos) {
    YAML::Mark mark;
    mark.line = static_cast<int>(std::count(text_.begin(), text_.begin() + static_cast<std::ptrdiff_t>(bad), '\n'));
    mark.column = static_cast<int>(bad - (bad == 0 ? 0 : text_.rfind('\n', bad - 1) + 1));
    return absl::InvalidArgumentError(absl::StrCat(At(mark), "not text in UTF-8: byte 0x",
                                                   absl::Hex(static_cast<unsigned char>(text_[bad]), absl::kZeroPad2)));
  }
  try {
    // Not LoadAll, which never ends where the parser takes nothing, such as before a comma.
    const YAML::Node first = YAML::Load(text_);
    std::istringstream in(text_);
    YAML::Parser parser(in);
    DocumentStarts starts;
    if (parser.HandleNextDocument(starts) && parser.HandleNextDocument(starts)) {
      return absl::InvalidArgumentError(
          absl::StrCat(At(starts.last), "no YAML, or a second document ('---'); there must be one"));
    }
    return first;
  } catch (const YAML::DeepRecursion& e) {
    return absl::InvalidArgumentError(absl::StrCat(At(e.mark), "nested too deeply"));
  } catch (const YAML::Exception& e) {
    return absl::InvalidArgumentError(absl::StrCat(At(e.mark), "no YAML: ", e.msg));
  }
}

}  // namespace lockstep::internal
