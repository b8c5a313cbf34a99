#pragma once

#include <absl/status/statusor.h>

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/checkpoint/value.h"

namespace lockstep::internal {

/// A value as a Python pickle of protocol 2, and the storages that its tensors point to: the i-th is the record
/// "data/i" of the file. Tensors that share a storage share a record.
struct Pickled {
  std::string bytes;
  std::vector<at::Tensor> storages;  ///< One-dimensional CPU tensors of bytes.
};

/// InvalidArgument for what weights_only can't load, such as a sparse tensor.
absl::StatusOr<Pickled> Pickle(const Value& value);

/// Gives the storage `key`: a one-dimensional tensor of `bytes` bytes, on the device where its tensors shall be.
using StorageReader = std::function<absl::StatusOr<at::Tensor>(const std::string& key, int64_t bytes)>;

/// What is read of a pickle.
struct Unpickled {
  Value value;
  size_t size;                              ///< Of the pickle, up to its end mark.
  std::map<std::string, int64_t> storages;  ///< Key and bytes of those that were asked for.
};

/// Whether a pickle may hold arrays of numpy's, which become tensors. `torch.load(weights_only=True)` refuses them.
enum class NumpyArrays { kRefused, kRead };

/// Reads what Python's `torch.load(weights_only=True)` reads, and defaultdict, argparse.Namespace and numpy's scalars
/// as plain values. Nothing is executed: a global that is not on the list of known ones is an InvalidArgument naming
/// it, and what is quantised, sparse, nested or of another device's kind one naming that. The memory that values take
/// is bounded by 64 MiB and 64 times the pickle's size. Null `read_storage`: tensors are left out (None), their
/// storages only noted. Arrays are read when they are of a plain number, and of this machine's byte order.
absl::StatusOr<Unpickled> Unpickle(std::string_view bytes, const StorageReader& read_storage,
                                   NumpyArrays arrays = NumpyArrays::kRefused);

}  // namespace lockstep::internal
