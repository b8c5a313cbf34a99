#include "lockstep/checkpoint/safetensors.h"

#include <absl/status/status.h>
#include <absl/strings/str_cat.h>
#include <ATen/Functions.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>
#include <vector>

#include "lockstep/base/atomic_file.h"
#include "lockstep/base/status_macros.h"
#include "lockstep/checkpoint/internal/load_named.h"
#include "lockstep/checkpoint/internal/mapped_file.h"
#include "lockstep/checkpoint/internal/storage_bytes.h"

namespace lockstep {
namespace {

constexpr uint64_t kMaxHeader = 100'000'000;
constexpr char kMetadata[] = "__metadata__";

constexpr std::pair<at::ScalarType, const char*> kDtypes[] = {{at::kDouble, "F64"},
                                                              {at::kFloat, "F32"},
                                                              {at::kHalf, "F16"},
                                                              {at::kBFloat16, "BF16"},
                                                              {at::kLong, "I64"},
                                                              {at::kInt, "I32"},
                                                              {at::kShort, "I16"},
                                                              {at::kChar, "I8"},
                                                              {at::kUInt64, "U64"},
                                                              {at::kUInt32, "U32"},
                                                              {at::kUInt16, "U16"},
                                                              {at::kByte, "U8"},
                                                              {at::kBool, "BOOL"},
                                                              {at::kComplexFloat, "C64"},
                                                              {at::kFloat8_e4m3fn, "F8_E4M3"},
                                                              {at::kFloat8_e5m2, "F8_E5M2"},
                                                              {at::kFloat8_e8m0fnu, "F8_E8M0"}};

std::optional<at::ScalarType> DtypeOf(const std::string& name) {
  for (const auto& [dtype, text] : kDtypes) {
    if (name == text) return dtype;
  }
  return std::nullopt;
}
const char* NameOf(at::ScalarType dtype) {
  for (const auto& [known, text] : kDtypes) {
    if (dtype == known) return text;
  }
  return nullptr;
}

absl::Status Invalid(const std::string& what) { return absl::InvalidArgumentError(what); }

struct Entry {
  std::string name;
  at::ScalarType dtype;
  std::vector<int64_t> shape;
  uint64_t begin, end;  ///< In the bytes behind the header.
};

absl::StatusOr<Entry> ParseEntry(const std::string& name, const nlohmann::json& json) {
  Entry entry{name, at::kFloat, {}, 0, 0};
  const absl::Status damaged = Invalid("'" + name + "' is damaged");
  if (!json.is_object() || !json.contains("dtype") || !json.contains("shape") || !json.contains("data_offsets")) {
    return damaged;
  }
  const auto &dtype = json["dtype"], &shape = json["shape"], &offsets = json["data_offsets"];
  if (!dtype.is_string() || !shape.is_array() || shape.size() > 64 || !offsets.is_array() || offsets.size() != 2 ||
      !offsets[0].is_number_unsigned() || !offsets[1].is_number_unsigned()) {
    return damaged;
  }
  const auto known = DtypeOf(dtype.get<std::string>());
  if (!known) return Invalid("'" + name + "' has the dtype '" + dtype.get<std::string>() + "', which is not supported");
  entry.dtype = *known;
  entry.begin = offsets[0].get<uint64_t>();
  entry.end = offsets[1].get<uint64_t>();
  double bytes = static_cast<double>(c10::elementSize(entry.dtype));  // can't overflow, exact where it matters
  for (const auto& size : shape) {
    if (!size.is_number_unsigned() || size.get<uint64_t>() > INT64_MAX) return damaged;
    entry.shape.push_back(size.get<int64_t>());
    bytes *= static_cast<double>(entry.shape.back());
  }
  if (entry.begin > entry.end || bytes != static_cast<double>(entry.end - entry.begin)) {
    return Invalid("'" + name + "': its offsets don't fit its shape");
  }
  return entry;
}

absl::StatusOr<Safetensors> Load(const std::string& path, at::Device map_location) {
  LOCKSTEP_ASSIGN_OR_RETURN(const auto file, internal::MappedFile::Open(path));
  uint64_t header = 0;
  if (file->size() < sizeof(header)) return Invalid("no safetensors file: it is too short");
  std::memcpy(&header, file->data(), sizeof(header));
  if (header > kMaxHeader || header > file->size() - sizeof(header) || header == 0 ||
      file->data()[sizeof(header)] != '{') {
    return Invalid("no safetensors file: it has no header");
  }
  const char* const text = file->data() + sizeof(header);
  // Nothing in a header is nested more than three deep.
  bool too_deep = false;
  const auto json = nlohmann::json::parse(
      text, text + header,
      [&](int depth, nlohmann::json::parse_event_t, nlohmann::json&) {
        too_deep = too_deep || depth > 4;
        return !too_deep;
      },
      /*allow_exceptions=*/false);
  if (too_deep || !json.is_object()) return Invalid("its header is damaged");
  Safetensors result;
  std::vector<Entry> entries;
  for (const auto& [name, value] : json.items()) {
    if (name != kMetadata) {
      LOCKSTEP_ASSIGN_OR_RETURN(Entry entry, ParseEntry(name, value));
      entries.push_back(std::move(entry));
      continue;
    }
    if (!value.is_object()) return Invalid("its metadata is damaged");
    for (const auto& [key, item] : value.items()) {
      if (!item.is_string()) return Invalid("its metadata is damaged");
      result.metadata[key] = item.get<std::string>();
    }
  }
  std::sort(entries.begin(), entries.end(), [](const Entry& a, const Entry& b) {
    return std::tie(a.begin, a.end, a.name) < std::tie(b.begin, b.end, b.name);
  });
  char* const data = file->data() + sizeof(header) + header;
  uint64_t at = 0;
  ValueDict tensors;
  for (const Entry& entry : entries) {
    if (entry.begin != at) return Invalid("'" + entry.name + "' doesn't begin where the one before it ends");
    at = entry.end;
    if (at > file->size() - sizeof(header) - header) return Invalid("'" + entry.name + "' is truncated");
    const auto size = static_cast<int64_t>(entry.end - entry.begin);
    const at::Tensor bytes = internal::StorageBytes(data + entry.begin, size, file, map_location);
    tensors.items.emplace_back(entry.name, bytes.view(entry.dtype).view(entry.shape));
  }
  if (at != file->size() - sizeof(header) - header) return Invalid("there are bytes that belong to no tensor");
  result.tensors = std::move(tensors);
  return result;
}

}  // namespace

absl::StatusOr<Safetensors> LoadSafetensors(const std::string& path, at::Device map_location) {
  return internal::LoadNamed(path, [&] { return Load(path, map_location); });
}

absl::Status SaveSafetensors(const Value& tensors, const std::string& path,
                             const std::map<std::string, std::string>& metadata) {
  if (tensors.dict() == nullptr) return Invalid(absl::StrCat("safetensors: a ", tensors.type_name(), ", not a dict"));
  std::vector<std::pair<std::string, at::Tensor>> items;
  for (const auto& [key, value] : tensors.dict()->items) {
    if (key.string() == nullptr || *key.string() == kMetadata || value.tensor() == nullptr ||
        value.tensor()->layout() != at::kStrided) {
      return Invalid("safetensors: only a flat dict of dense tensors by name can be saved, and '" +
                     (key.string() == nullptr ? key.type_name() : *key.string()) + "' is none");
    }
    if (NameOf(value.tensor()->scalar_type()) == nullptr) {
      return Invalid(absl::StrCat("safetensors: '", *key.string(), "' has a dtype that the format has not"));
    }
    items.emplace_back(*key.string(), *value.tensor());
  }
  // The widest first, so that each lies where its numbers are aligned; then by name, as the format's own writer does.
  std::sort(items.begin(), items.end(), [](const auto& a, const auto& b) {
    return std::make_pair(-static_cast<int64_t>(a.second.itemsize()), a.first) <
           std::make_pair(-static_cast<int64_t>(b.second.itemsize()), b.first);
  });
  nlohmann::ordered_json header;
  if (!metadata.empty()) header[kMetadata] = metadata;
  uint64_t at = 0;
  for (const auto& [name, tensor] : items) {
    if (header.contains(name)) return Invalid("safetensors: '" + name + "' is there twice");
    header[name] = {{"dtype", NameOf(tensor.scalar_type())},
                    {"shape", tensor.sizes().vec()},
                    {"data_offsets", {at, at + tensor.nbytes()}}};
    at += tensor.nbytes();
  }
  std::string text = items.empty() && metadata.empty() ? "{}" : header.dump();
  text.resize((text.size() + 7) / 8 * 8, ' ');
  AtomicFile file(path);
  LOCKSTEP_RETURN_IF_ERROR(file.Open());
  const uint64_t size = text.size();
  LOCKSTEP_RETURN_IF_ERROR(file.Write(&size, sizeof(size)));
  LOCKSTEP_RETURN_IF_ERROR(file.Write(text.data(), text.size()));
  for (const auto& [name, tensor] : items) {
    const at::Tensor dense = tensor.detach().resolve_conj().resolve_neg().cpu().contiguous();
    LOCKSTEP_RETURN_IF_ERROR(file.Write(dense.const_data_ptr(), dense.nbytes()));
  }
  return file.Commit();
}

}  // namespace lockstep
