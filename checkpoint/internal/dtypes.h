#pragma once

#include <c10/core/ScalarType.h>

#include <optional>
#include <string>

namespace lockstep::internal {

/// The name of the class in Python's `torch` that stands for a storage of this dtype, such as "FloatStorage"; empty
/// for dtypes that have none.
std::string StorageName(at::ScalarType dtype);
std::optional<at::ScalarType> StorageDtype(const std::string& name);

}  // namespace lockstep::internal
