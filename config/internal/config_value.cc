#include "lockstep/config/internal/config_value.h"

#include <absl/strings/ascii.h>
#include <absl/strings/charconv.h>
#include <absl/strings/match.h>
#include <yaml-cpp/yaml.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <limits>
#include <set>
#include <string_view>

#include "lockstep/config/internal/quote.h"

namespace lockstep::internal {
namespace {

/// The text of a scalar. An error for all else, and for one in quotes where `plain` is wanted.
std::string ReadScalar(const YAML::Node& node, const char* expected, bool plain, std::string& text) {
  const auto wrong = [&](auto... mend) {
    return absl::StrCat(": expected ", expected, ", found ", Describe(node), mend...);
  };
  if (!node.IsScalar()) return wrong();
  const std::string& tag = node.Tag();  // "?" of a plain scalar, "!" of one in quotes
  if (tag != "?" && tag != "!" && !tag.empty())
    return absl::StrCat(": has the tag ", Quoted(tag), "; tags have no use here");
  if (plain && tag == "!") return wrong("; take the quotes off");
  text = node.Scalar();
  return "";
}

template <typename T>
std::string ReadInteger(const YAML::Node& node, T& value) {
  std::string text;
  const char* expected = NameOf(&value).one;
  if (std::string wrong = ReadScalar(node, expected, /*plain=*/true, text); !wrong.empty()) return wrong;
  const char* begin = text.data() + (text[0] == '+' ? 1 : 0);
  const char* digits = begin + (*begin == '-' && begin == text.data() ? 1 : 0);
  const char* end = text.data() + text.size();
  if (digits == end || !std::all_of(digits, end, absl::ascii_isdigit)) {
    return absl::StrCat(": expected ", expected, ", found ", Quoted(text));
  }
  if (*digits == '0' && digits + 1 != end) {  // octal to some readers of YAML, decimal to others
    return absl::StrCat(": expected ", expected, ", found ", Quoted(text), " with a leading zero");
  }
  if (std::from_chars(begin, end, value).ec != std::errc()) {
    return absl::StrCat(": ", Quoted(text), " is not from ", std::numeric_limits<T>::min(), " to ",
                        std::numeric_limits<T>::max());
  }
  return "";
}

}  // namespace

std::string Describe(const YAML::Node& node) {
  if (node.IsScalar()) return Quoted(node.Scalar());
  return node.IsMap() ? "a map" : node.IsSequence() ? "a list" : "nothing (null)";
}

std::string ReadValue(const YAML::Node& node, bool, int64_t& value) { return ReadInteger(node, value); }
std::string ReadValue(const YAML::Node& node, bool, size_t& value) { return ReadInteger(node, value); }
std::string ReadValue(const YAML::Node& node, bool, int& value) { return ReadInteger(node, value); }

std::string ReadValue(const YAML::Node& node, bool may_be_non_finite, double& value) {
  std::string text;
  if (std::string wrong = ReadScalar(node, "a number", /*plain=*/true, text); !wrong.empty()) return wrong;
  const std::string lower = absl::AsciiStrToLower(text);
  const bool negative = lower[0] == '-';
  const std::string magnitude = lower.substr(negative || lower[0] == '+' ? 1 : 0);
  if (lower == ".nan" || magnitude == ".inf") {
    if (!may_be_non_finite) return absl::StrCat(": must be finite, found ", Quoted(text));
    value = lower == ".nan" ? std::numeric_limits<double>::quiet_NaN() : std::numeric_limits<double>::infinity();
    if (negative) value = -value;
    return "";
  }
  const char* end = magnitude.data() + magnitude.size();
  // Words that C reads as numbers, such as inf and nan, are none in YAML.
  const bool number = absl::ascii_isdigit(magnitude[0]) || magnitude[0] == '.';
  const auto result = absl::from_chars(magnitude.data(), end, value);
  if (!number || result.ptr != end || result.ec == std::errc::invalid_argument) {
    return absl::StrCat(": expected a number, found ", Quoted(text));
  }
  if (result.ec != std::errc()) return absl::StrCat(": ", Quoted(text), " is out of a double's range");
  if (negative) value = -value;
  return "";
}

std::string ReadValue(const YAML::Node& node, bool, bool& value) {
  std::string text;
  if (std::string wrong = ReadScalar(node, "true or false", /*plain=*/true, text); !wrong.empty()) return wrong;
  return YAML::convert<bool>::decode(node, value) ? "" : absl::StrCat(": expected true or false, found ", Quoted(text));
}

std::string ReadValue(const YAML::Node& node, bool, std::string& value) {
  std::string wrong = ReadScalar(node, "text", /*plain=*/false, value);
  if (!wrong.empty() && node.IsNull()) wrong += R"(; an empty text is written "")";
  return wrong;
}

std::string ToText(double value) {
  if (std::isnan(value)) return ".nan";
  if (std::isinf(value)) return value < 0 ? "-.inf" : ".inf";
  std::array<char, 32> digits;
  std::string text(digits.data(), std::to_chars(digits.data(), digits.data() + digits.size(), value).ptr);
  // Without a point YAML 1.1 takes it for an integer, or with an exponent for text.
  if (text.find('.') == std::string::npos) text.insert(std::min(text.find('e'), text.size()), ".0");
  return text;
}

std::string ToText(int64_t value) { return absl::StrCat(value); }
std::string ToText(size_t value) { return absl::StrCat(value); }
std::string ToText(int value) { return absl::StrCat(value); }
std::string ToText(bool value) { return value ? "true" : "false"; }

std::string ToText(const std::string& value) {
  static const auto& words = *new std::set<std::string>{"true", "false", "yes", "no",  "on",
                                                        "off",  "y",     "n",   "null"};  // no text without quotes
  const auto plain = [](char c) {
    return absl::ascii_isalnum(c) || absl::StrContains("_-./", absl::string_view(&c, 1));
  };
  const bool letter_first = !value.empty() && (absl::ascii_isalpha(value[0]) || value[0] == '/');
  if (letter_first && std::all_of(value.begin(), value.end(), plain) &&
      words.count(absl::AsciiStrToLower(value)) == 0) {
    return value;
  }
  std::string text = "\"";
  for (const char c : value) {
    if (c == '"' || c == '\\') {
      absl::StrAppend(&text, "\\", std::string(1, c));
    } else if (c == '\n') {
      text += "\\n";
    } else if (static_cast<unsigned char>(c) < 0x20 || c == 0x7F) {
      absl::StrAppend(&text, "\\u", absl::Hex(static_cast<unsigned char>(c), absl::kZeroPad4));
    } else {
      text += c;
    }
  }
  return text + "\"";
}

TypeName NameOf(const double*) { return {"a number", "numbers"}; }
TypeName NameOf(const int64_t*) { return {"an integer", "integers"}; }
TypeName NameOf(const size_t*) { return {"an integer from 0 on", "integers from 0 on"}; }
TypeName NameOf(const int*) { return {"an integer", "integers"}; }
TypeName NameOf(const bool*) { return {"true or false", "true and false"}; }
TypeName NameOf(const std::string*) { return {"text", "texts"}; }

}  // namespace lockstep::internal
