#include "lockstep/config/internal/quote.h"

#include <absl/strings/escaping.h>
#include <absl/strings/str_cat.h>
#include <absl/strings/str_replace.h>

#include <cstdint>

namespace lockstep::internal {
namespace {

/// Bytes of the character that begins there, 0 if none does.
size_t CharacterSize(const std::string& text, size_t at) {
  const auto byte = [&](size_t i) { return static_cast<uint8_t>(i < text.size() ? text[i] : 0); };
  const uint8_t first = byte(at);
  if (first < 0x80) return (first >= 0x20 && first != 0x7F) || first == '\t' || first == '\n' || first == '\r' ? 1 : 0;
  const size_t size = first < 0xC0 ? 0 : first < 0xE0 ? 2 : first < 0xF0 ? 3 : first < 0xF8 ? 4 : 0;
  if (size == 0) return 0;
  uint32_t code = first & (0x7F >> size);
  for (size_t i = 1; i < size; ++i) {
    if ((byte(at + i) & 0xC0) != 0x80) return 0;
    code = code << 6 | (byte(at + i) & 0x3F);
  }
  constexpr uint32_t kLeast[] = {0, 0, 0x80, 0x800, 0x10000};  // by size: none may be longer than needed
  const bool surrogate = code >= 0xD800 && code < 0xE000;
  return code >= kLeast[size] && code <= 0x10FFFF && !surrogate ? size : 0;
}

}  // namespace

size_t FirstBadByte(const std::string& text) {
  for (size_t at = 0; at < text.size();) {
    const size_t size = CharacterSize(text, at);
    if (size == 0) return at;
    at += size;
  }
  return std::string::npos;
}

std::string Shortened(const std::string& text) {
  // Bytes that are no text are escaped, all else but line breaks is left.
  const auto escaped = [](const std::string& piece) {
    if (FirstBadByte(piece) != std::string::npos) return absl::CHexEscape(piece);
    return absl::StrReplaceAll(piece, {{"\n", "\\n"}, {"\r", "\\r"}});
  };
  constexpr size_t kLongest = 60;
  if (text.size() <= kLongest) return escaped(text);
  size_t end = kLongest;
  while (end > 0 && (text[end] & 0xC0) == 0x80) --end;
  return escaped(text.substr(0, end)) + "…";
}

std::string Quoted(const std::string& text) { return absl::StrCat("'", Shortened(text), "'"); }

}  // namespace lockstep::internal
