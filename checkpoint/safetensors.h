#pragma once

#include <absl/status/statusor.h>
#include <c10/core/Device.h>

#include <map>
#include <string>

#include "lockstep/checkpoint/value.h"

namespace lockstep {

// Files of the safetensors format (https://github.com/huggingface/safetensors): a JSON header and the tensors' bytes.

struct Safetensors {
  Value tensors;                                ///< A dict of tensors by name, in the order of the file.
  std::map<std::string, std::string> metadata;  ///< `__metadata__` of the header.
};

/// Reads a file. On the CPU tensors lie in the mapped file, as LoadPth's do. Errors: NotFound; Unavailable;
/// InvalidArgument, with the path, for a file that is truncated or damaged, or has a dtype that LibTorch has not. What
/// is read is bounded by the file's size and the format's 100 MB for the header.
absl::StatusOr<Safetensors> LoadSafetensors(const std::string& path, at::Device map_location = at::kCPU);

/// Writes `tensors`, a flat dict of tensors by name. Each is written whole and contiguous: the format knows no strides
/// and no shared storages. The file appears whole or not at all. Errors as SavePth's; InvalidArgument for what is no
/// tensor.
absl::Status SaveSafetensors(const Value& tensors, const std::string& path,
                             const std::map<std::string, std::string>& metadata = {});

}  // namespace lockstep
