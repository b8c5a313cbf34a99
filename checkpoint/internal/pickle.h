#pragma once

#include <absl/status/statusor.h>

#include <functional>
#include <string>
#include <vector>

#include "lockstep/checkpoint/value.h"

namespace lockstep::internal {

/// A value as a Python pickle of protocol 2, and the storages that its tensors point to: the i-th is the record
/// "data/i" of the file. Tensors that share a storage share a record.
struct Pickled {
  std::string bytes;
  std::vector<at::Tensor> storages;  ///< One-dimensional CPU tensors.
};

/// InvalidArgument for a dtype that has no storage class in Python.
absl::StatusOr<Pickled> Pickle(const Value& value);

/// Gives the bytes of the storage `key`: a one-dimensional CPU tensor of `numel` elements of `dtype`.
using StorageReader =
    std::function<absl::StatusOr<at::Tensor>(const std::string& key, at::ScalarType dtype, int64_t numel)>;

/// Reads what Pickle writes and what Python's `torch.save` writes for plain values and tensors. Nothing is executed:
/// a global that is not on the list of known ones is an InvalidArgument naming it.
absl::StatusOr<Value> Unpickle(const std::string& bytes, const StorageReader& read_storage);

}  // namespace lockstep::internal
