#pragma once

#include <absl/status/statusor.h>
#include <c10/core/Device.h>

#include <string>

#include "lockstep/checkpoint/value.h"

namespace lockstep {

/// Writes `value` as the zip file that Python's `torch.load(path, weights_only=True)` reads. The file appears whole or
/// not at all (see AtomicFile). Errors: Unavailable or ResourceExhausted with the path and what the system says,
/// InvalidArgument for a tensor that can't be saved.
absl::Status SavePth(const Value& value, const std::string& path);

struct LoadPthOptions {
  /// Where tensors come to, wherever they were saved; a tensor's storage is moved once, for all that share it.
  at::Device map_location = at::kCPU;
  /// Whether the checksums of the zip file are compared, which reads all of it. Otherwise tensors are read when they
  /// are touched.
  bool verify = true;
};

/// Reads what Python's `torch.save` writes, in its zip format (members stored or deflated) and the older one: all that
/// `torch.load(weights_only=True)` accepts, and defaultdict, argparse.Namespace and numpy's scalars as plain values.
/// What is quantised, sparse or of a tensor subclass is refused by name. Nothing in the file is executed.
///
/// On the CPU tensors lie in the mapped file: what is written to them stays in this process, and the file must not be
/// overwritten in place while they live (SavePth replaces it).
///
/// Errors: NotFound; Unavailable; InvalidArgument, with the path, for a file that is truncated, damaged or holds
/// something that is not on the list of known globals.
absl::StatusOr<Value> LoadPth(const std::string& path, const LoadPthOptions& options = {});

}  // namespace lockstep
