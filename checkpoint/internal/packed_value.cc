#include "lockstep/checkpoint/internal/packed_value.h"

#include <ATen/Functions.h>

#include <cstdint>
#include <cstring>
#include <map>
#include <utility>

#include "lockstep/base/status_macros.h"
#include "lockstep/checkpoint/internal/pickle.h"

namespace lockstep::internal {

absl::StatusOr<std::string> PackValue(const Value& value) {
  LOCKSTEP_ASSIGN_OR_RETURN(const Pickled pickled, Pickle(value));
  const uint64_t size = pickled.bytes.size();
  std::string text(reinterpret_cast<const char*>(&size), sizeof(size));
  text += pickled.bytes;
  for (const at::Tensor& storage : pickled.storages) {
    text.append(static_cast<const char*>(storage.const_data_ptr()), storage.nbytes());
  }
  return text;
}

absl::StatusOr<Value> UnpackValue(std::string_view text) {
  uint64_t size = 0;
  std::memcpy(&size, text.data(), sizeof(size));
  const std::string_view pickle = text.substr(sizeof(size), size), storages = text.substr(sizeof(size) + size);
  // Keys are the storages' numbers; where each begins is known when the sizes of all are.
  LOCKSTEP_ASSIGN_OR_RETURN(const auto outline, Unpickle(pickle, nullptr));
  std::map<std::string, size_t> begins;
  size_t begin = 0;
  for (size_t i = 0; i < outline.storages.size(); ++i) {
    const std::string key = std::to_string(i);
    begins[key] = begin;
    begin += outline.storages.at(key);
  }
  LOCKSTEP_ASSIGN_OR_RETURN(auto read, Unpickle(pickle, [&](const std::string& key, int64_t bytes) {
                              at::Tensor storage = at::empty({bytes}, at::kByte);
                              std::memcpy(storage.mutable_data_ptr(), storages.data() + begins.at(key), bytes);
                              return storage;
                            }));
  return std::move(read.value);
}

}  // namespace lockstep::internal
