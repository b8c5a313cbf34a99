#pragma once

#include <c10/core/ScalarType.h>

#include <optional>
#include <string>

namespace lockstep::internal {

/// Python's name of a dtype, such as "float32"; empty for one that checkpoints don't hold.
std::string DtypeName(at::ScalarType dtype);
/// The dtype of such a name, also of its alias ("float", "long").
std::optional<at::ScalarType> DtypeOf(const std::string& name);

/// The name of Python's typed storage of a dtype, such as "FloatStorage"; empty where there is none and tensors are
/// saved over an UntypedStorage.
std::string StorageName(at::ScalarType dtype);
std::optional<at::ScalarType> StorageDtype(const std::string& name);

}  // namespace lockstep::internal
