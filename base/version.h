#pragma once

namespace lockstep {

inline constexpr char kVersion[] = "0.1.0";  ///< As MODULE.bazel has it.

}  // namespace lockstep
