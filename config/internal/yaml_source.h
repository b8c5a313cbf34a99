#pragma once

#include <absl/status/statusor.h>
#include <yaml-cpp/yaml.h>

#include <string>
#include <utility>

namespace lockstep::internal {

/// Text in YAML and where it is from.
class YamlSource {
 public:
  /// Errors: NotFound; InvalidArgument for what is no regular file or too large; Unavailable with what the system says.
  static absl::StatusOr<YamlSource> File(const std::string& path);
  /// `name` stands before errors instead of path and line, or instead of the path.
  static YamlSource Argument(std::string name, std::string text) { return {std::move(name), std::move(text), false}; }

  static YamlSource Text(std::string name, std::string text) { return {std::move(name), std::move(text), true}; }

  /// The one document in it. InvalidArgument when it isn't UTF-8, isn't YAML, or is several documents.
  absl::StatusOr<YAML::Node> Parse() const;

  /// `config.yaml:7:3: `, what an error there begins with.
  std::string At(const YAML::Mark& mark) const;

 private:
  YamlSource(std::string name, std::string text, bool lines)
      : name_(std::move(name)), text_(std::move(text)), has_lines_(lines) {}

  std::string name_, text_;
  bool has_lines_;
};

}  // namespace lockstep::internal
