#pragma once

#include <string>
#include <string_view>

namespace lockstep::internal {

/// What is no UTF-8 in `text`, or may not be in XML, becomes U+FFFD.
std::string ValidUtf8(std::string_view text);

/// `text` for any place in HTML or SVG, also in quotes: nothing in it is markup, and it is valid UTF-8.
std::string EscapeMarkup(std::string_view text);

/// At most `letters` letters of a UTF-8 text, the last of them … where it is longer.
std::string Shortened(std::string_view text, size_t letters);

}  // namespace lockstep::internal
