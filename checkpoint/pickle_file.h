#pragma once

#include <absl/status/statusor.h>

#include <string>

#include "lockstep/checkpoint/value.h"

namespace lockstep {

/// Reads a file that Python's `pickle.dump` wrote, in protocol 2 to 5, also Python 2's: plain values, and numpy arrays
/// of plain numbers, in C's or Fortran's order, as tensors of the same dtype, shape and strides. A Python 2's str is a
/// string. Nothing in the file is executed.
///
/// Errors, with the path: NotFound; Unavailable; InvalidArgument for a file that is truncated, damaged, or holds
/// something else, such as an array of objects or in big-endian byte order, which is named.
absl::StatusOr<Value> LoadPickle(const std::string& path);

}  // namespace lockstep
