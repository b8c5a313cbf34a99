#pragma once

#include <cstddef>
#include <string>

namespace lockstep::internal {

/// Where text has its first byte that is no UTF-8, or a control character which YAML forbids; npos if nowhere.
size_t FirstBadByte(const std::string& text);

/// For an error: on one line, and no longer than people read.
std::string Shortened(const std::string& text);
/// The same in quotes: `'many'`.
std::string Quoted(const std::string& text);

}  // namespace lockstep::internal
