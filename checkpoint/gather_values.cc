#include "lockstep/checkpoint/gather_values.h"

#include <absl/status/status.h>
#include <ATen/Functions.h>

#include <cstdint>
#include <cstring>
#include <map>
#include <string>
#include <string_view>
#include <utility>

#include "lockstep/base/status_macros.h"
#include "lockstep/checkpoint/internal/pickle.h"
#include "lockstep/comm/agree.h"
#include "lockstep/comm/texts.h"

namespace lockstep {
namespace {

/// The size of the pickle, the pickle, the storages in their order.
std::string Pack(const internal::Pickled& pickled) {
  const uint64_t size = pickled.bytes.size();
  std::string text(reinterpret_cast<const char*>(&size), sizeof(size));
  text += pickled.bytes;
  for (const at::Tensor& storage : pickled.storages) {
    text.append(static_cast<const char*>(storage.const_data_ptr()), storage.nbytes());
  }
  return text;
}

absl::StatusOr<Value> Unpack(std::string_view text) {
  uint64_t size = 0;
  std::memcpy(&size, text.data(), sizeof(size));
  const std::string_view pickle = text.substr(sizeof(size), size), storages = text.substr(sizeof(size) + size);
  // Keys are the storages' numbers; where each begins is known when the sizes of all are.
  LOCKSTEP_ASSIGN_OR_RETURN(const auto outline, internal::Unpickle(pickle, nullptr));
  std::map<std::string, size_t> begins;
  size_t begin = 0;
  for (size_t i = 0; i < outline.storages.size(); ++i) {
    const std::string key = std::to_string(i);
    begins[key] = begin;
    begin += outline.storages.at(key);
  }
  LOCKSTEP_ASSIGN_OR_RETURN(auto read, internal::Unpickle(pickle, [&](const std::string& key, int64_t bytes) {
                              at::Tensor storage = at::empty({bytes}, at::kByte);
                              std::memcpy(storage.mutable_data_ptr(), storages.data() + begins.at(key), bytes);
                              return storage;
                            }));
  return std::move(read.value);
}

}  // namespace

absl::StatusOr<std::vector<Value>> GatherValues(const Value& mine, const ProcessGroupPtr& group) {
  const auto pickled = internal::Pickle(mine);
  LOCKSTEP_RETURN_IF_ERROR(AgreeOnStatus(pickled.status(), group));
  std::vector<Value> values;
  for (std::string& text : GatherString(Pack(*pickled), group)) {
    LOCKSTEP_ASSIGN_OR_RETURN(Value value, Unpack(text));
    values.push_back(std::move(value));
    std::string().swap(text);  // no longer twice in memory
  }
  return values;
}

}  // namespace lockstep
