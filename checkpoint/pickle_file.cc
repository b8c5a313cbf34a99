#include "lockstep/checkpoint/pickle_file.h"

#include <absl/status/status.h>

#include <cstdint>

#include "lockstep/base/status_macros.h"
#include "lockstep/checkpoint/internal/load_named.h"
#include "lockstep/checkpoint/internal/mapped_file.h"
#include "lockstep/checkpoint/internal/pickle.h"

namespace lockstep {
namespace {

absl::StatusOr<Value> Load(const std::string& path) {
  LOCKSTEP_ASSIGN_OR_RETURN(const auto file, internal::MappedFile::Open(path));
  const auto no_storage = [](const std::string&, int64_t) -> absl::StatusOr<at::Tensor> {
    return absl::InvalidArgumentError("it points to a tensor that is not in it");
  };
  LOCKSTEP_ASSIGN_OR_RETURN(auto unpickled,
                            internal::Unpickle({file->data(), file->size()}, no_storage, internal::NumpyArrays::kRead));
  return std::move(unpickled.value);
}

}  // namespace

absl::StatusOr<Value> LoadPickle(const std::string& path) {
  return internal::LoadNamed(
      path, [&] { return Load(path); }, "pickle");
}

}  // namespace lockstep
