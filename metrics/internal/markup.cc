#include "lockstep/metrics/internal/markup.h"

#include <absl/strings/str_replace.h>

#include <cstddef>

namespace lockstep::internal {
namespace {

constexpr std::string_view kReplacement = "\xEF\xBF\xBD";

/// Bytes of the letter at the front of `text`, which isn't empty; 0 where it is no UTF-8 or may not be in XML.
size_t LetterSize(std::string_view text) {
  const auto byte = [&](size_t i) { return static_cast<unsigned char>(text[i]); };
  const unsigned char first = byte(0);
  if (first < 0x80) return first >= 0x20 || first == '\t' || first == '\n' || first == '\r' ? 1 : 0;
  const size_t size = first >= 0xF0 ? 4 : first >= 0xE0 ? 3 : 2;
  if (first < 0xC2 || first > 0xF4 || text.size() < size) return 0;
  char32_t code = first & (0xFF >> (size + 1));
  for (size_t i = 1; i < size; ++i) {
    if ((byte(i) & 0xC0) != 0x80) return 0;
    code = code << 6 | (byte(i) & 0x3F);
  }
  constexpr char32_t kLeast[] = {0, 0, 0x80, 0x800, 0x10000};
  const bool surrogate = code >= 0xD800 && code < 0xE000;
  return code < kLeast[size] || code > 0x10FFFF || surrogate || (code & 0xFFFE) == 0xFFFE ? 0 : size;
}

}  // namespace

std::string ValidUtf8(std::string_view text) {
  std::string valid;
  while (!text.empty()) {
    const size_t size = LetterSize(text);
    valid += size == 0 ? kReplacement : text.substr(0, size);
    text.remove_prefix(size == 0 ? 1 : size);
  }
  return valid;
}

std::string EscapeMarkup(std::string_view text) {
  return absl::StrReplaceAll(ValidUtf8(text),
                             {{"&", "&amp;"}, {"<", "&lt;"}, {">", "&gt;"}, {"\"", "&quot;"}, {"'", "&#39;"}});
}

std::string Shortened(std::string_view text, size_t letters) {
  size_t end = 0, kept = 0;  // bytes of all letters so far, and of those but the last that would be left
  for (size_t count = 0; end < text.size(); ++count) {
    if (count == letters) return std::string(text.substr(0, kept)) + "…";
    if (count + 1 == letters) kept = end;
    const size_t size = LetterSize(text.substr(end));
    end += size == 0 ? 1 : size;
  }
  return std::string(text);
}

}  // namespace lockstep::internal
