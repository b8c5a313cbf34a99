#pragma once

#include <absl/strings/str_cat.h>
#include <yaml-cpp/yaml.h>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace lockstep::internal {

// Values of a configuration: from YAML, to YAML, and what people call their types. Defined for the plain types, lists
// of them and optional ones.

/// What a node is, for an error: `'many'`, "a list", …
std::string Describe(const YAML::Node& node);

/// Reads a value. Returns what is wrong, to be put behind the field's name (": expected a number, found 'fast'", or
/// "[2]: …" for one item of a list), or nothing.
std::string ReadValue(const YAML::Node& node, bool may_be_non_finite, double& value);
std::string ReadValue(const YAML::Node& node, bool may_be_non_finite, int64_t& value);
std::string ReadValue(const YAML::Node& node, bool may_be_non_finite, size_t& value);
std::string ReadValue(const YAML::Node& node, bool may_be_non_finite, int& value);
std::string ReadValue(const YAML::Node& node, bool may_be_non_finite, bool& value);
std::string ReadValue(const YAML::Node& node, bool may_be_non_finite, std::string& value);

/// As YAML 1.1 and 1.2 both read it, and JSON's readers most of it; a double keeps every bit.
std::string ToText(double value);
std::string ToText(int64_t value);
std::string ToText(size_t value);
std::string ToText(int value);
std::string ToText(bool value);
std::string ToText(const std::string& value);

struct TypeName {
  const char* one;   ///< "an integer"
  const char* many;  ///< "integers"
};
TypeName NameOf(const double*);
TypeName NameOf(const int64_t*);
TypeName NameOf(const size_t*);
TypeName NameOf(const int*);
TypeName NameOf(const bool*);
TypeName NameOf(const std::string*);

template <typename T>
std::string DescribeType(const T* type) {
  return NameOf(type).one;
}
template <typename T>
std::string DescribeType(const std::vector<T>*) {
  return absl::StrCat("a list of ", NameOf(static_cast<const T*>(nullptr)).many);
}
template <typename T>
std::string DescribeType(const std::optional<T>*) {
  return absl::StrCat(NameOf(static_cast<const T*>(nullptr)).one, " or null");
}

template <typename T>
std::string ReadValue(const YAML::Node& node, bool may_be_non_finite, std::vector<T>& values) {
  if (!node.IsSequence()) {
    return absl::StrCat(": expected ", DescribeType(&values), ", found ", Describe(node),
                        node.IsScalar() ? "; a list is written in brackets: [a, b]" : "");
  }
  for (const auto& item : node) {
    T value{};
    const std::string wrong = ReadValue(item, may_be_non_finite, value);
    if (!wrong.empty()) return absl::StrCat("[", values.size(), "]", wrong);
    values.push_back(std::move(value));
  }
  return "";
}
template <typename T>
std::string ReadValue(const YAML::Node& node, bool may_be_non_finite, std::optional<T>& value) {
  if (node.IsNull()) return "";
  return ReadValue(node, may_be_non_finite, value.emplace());
}

template <typename T>
std::string ToText(const std::vector<T>& values) {
  std::string text = "[";
  for (const T& value : values) absl::StrAppend(&text, text.size() > 1 ? ", " : "", ToText(value));
  return text + "]";
}
template <typename T>
std::string ToText(const std::optional<T>& value) {
  return value ? ToText(*value) : "null";
}

template <typename T>
bool IsFinite(const T&) {
  return true;
}
inline bool IsFinite(double value) { return std::isfinite(value); }
inline bool IsFinite(const std::optional<double>& value) { return !value || std::isfinite(*value); }
inline bool IsFinite(const std::vector<double>& values) {
  for (const double value : values) {
    if (!std::isfinite(value)) return false;
  }
  return true;
}

}  // namespace lockstep::internal
