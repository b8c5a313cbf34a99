#include "lockstep/checkpoint/pth.h"

#include <absl/status/status.h>
#include <absl/strings/match.h>
#include <absl/strings/str_cat.h>
#include <ATen/Functions.h>
#include <caffe2/serialize/inline_container.h>

#include <cstdint>
#include <map>
#include <memory>
#include <string_view>
#include <utility>

#include "lockstep/base/atomic_file.h"
#include "lockstep/base/error_text.h"
#include "lockstep/base/status_macros.h"
#include "lockstep/checkpoint/internal/load_named.h"
#include "lockstep/checkpoint/internal/mapped_file.h"
#include "lockstep/checkpoint/internal/pickle.h"
#include "lockstep/checkpoint/internal/storage_bytes.h"
#include "lockstep/checkpoint/internal/zip_reader.h"

namespace lockstep {

absl::Status SavePth(const Value& value, const std::string& path) {
  LOCKSTEP_ASSIGN_OR_RETURN(const internal::Pickled pickled, internal::Pickle(value));
  AtomicFile file(path);
  LOCKSTEP_RETURN_IF_ERROR(file.Open());
  absl::Status written;
  try {
    caffe2::serialize::PyTorchStreamWriter writer([&](const void* data, size_t size) -> size_t {
      if (written.ok()) written = file.Write(data, size);
      return written.ok() ? size : 0;
    });
    try {
      writer.writeRecord("data.pkl", pickled.bytes.data(), pickled.bytes.size());
      writer.writeRecord("byteorder", "little", 6);
      for (size_t i = 0; i < pickled.storages.size(); ++i) {
        const at::Tensor& storage = pickled.storages[i];
        writer.writeRecord(absl::StrCat("data/", i), storage.const_data_ptr(), storage.nbytes());
      }
    } catch (const std::exception&) {
      if (!writer.finalized()) {
        try {
          writer.writeEndOfFile();  // or its destructor complains
        } catch (const std::exception&) {
        }
      }
      throw;
    }
    writer.writeEndOfFile();
  } catch (const std::exception& e) {
    if (written.ok()) written = absl::UnavailableError(absl::StrCat("file ", path, ": ", FirstLine(e.what())));
  }
  LOCKSTEP_RETURN_IF_ERROR(written);
  return file.Commit();
}

namespace {

using internal::MappedFile;

absl::StatusOr<Value> LoadZip(const std::shared_ptr<MappedFile>& file, const LoadPthOptions& options) {
  auto opened = internal::ZipReader::Open(file);
  if (!opened.ok()) {
    return absl::InvalidArgumentError("damaged or no .pth file: " + std::string(opened.status().message()));
  }
  internal::ZipReader zip = *std::move(opened);
  // Everything is in one folder of any name.
  std::string folder;
  for (const auto& [name, member] : zip.members()) {
    if (name == "data.pkl" || absl::EndsWith(name, "/data.pkl")) folder = name.substr(0, name.size() - 8);
  }
  const auto has = [&](const std::string& name) { return zip.members().count(folder + name) > 0; };
  if (!has("data.pkl")) return absl::InvalidArgumentError("a zip file, but none that torch.save wrote");
  if (has("constants.pkl")) return absl::InvalidArgumentError("a TorchScript program, which torch::jit::load reads");
  if (has("byteorder")) {
    LOCKSTEP_ASSIGN_OR_RETURN(const auto order, zip.Read(folder + "byteorder", options.verify));
    const std::string text(order.data, order.size);
    if (text != "little") return absl::InvalidArgumentError("its byte order is '" + text + "', not little");
  }
  const auto read = [&](const std::string& key, int64_t size) -> absl::StatusOr<at::Tensor> {
    LOCKSTEP_ASSIGN_OR_RETURN(auto record, zip.Read(folder + "data/" + key, options.verify));
    if (record.size != static_cast<size_t>(size)) {
      return absl::InvalidArgumentError(
          absl::StrCat("record data/", key, " holds ", record.size, " bytes, not ", size));
    }
    return internal::StorageBytes(record.data, size, std::move(record.owner), options.map_location);
  };
  LOCKSTEP_ASSIGN_OR_RETURN(const auto pickle, zip.Read(folder + "data.pkl", /*verify=*/true));
  LOCKSTEP_ASSIGN_OR_RETURN(auto unpickled, internal::Unpickle({pickle.data, pickle.size}, read));
  return std::move(unpickled.value);
}

// 0x1950a86a20f9469cfc6c as a pickle of protocol 2.
constexpr std::string_view kLegacyMagic("\x80\x02\x8a\x0a\x6c\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19\x2e", 15);

/// Pickles one after the other (magic number, protocol, the system's properties, the value, the keys of its storages),
/// then for each storage its number of elements and its bytes.
absl::StatusOr<Value> LoadLegacy(const std::shared_ptr<MappedFile>& file, const LoadPthOptions& options) {
  const std::string_view bytes(file->data(), file->size());
  size_t at = kLegacyMagic.size();
  const auto next = [&](const internal::StorageReader& read) -> absl::StatusOr<internal::Unpickled> {
    auto unpickled = internal::Unpickle(bytes.substr(at), read);
    if (unpickled.ok()) at += unpickled->size;
    return unpickled;
  };
  LOCKSTEP_ASSIGN_OR_RETURN(const auto protocol, next(nullptr));
  if (!protocol.value.number().ok() || *protocol.value.number() != 1001) {
    return absl::InvalidArgumentError("its protocol version is not 1001");
  }
  LOCKSTEP_ASSIGN_OR_RETURN(const auto system, next(nullptr));
  const Value* little = system.value.find("little_endian");
  if (little == nullptr || !little->number().ok() || *little->number() == 0) {
    return absl::InvalidArgumentError("its byte order is not little");
  }
  // Once without storages, to learn where they are, and once with them.
  const size_t begin = at;
  LOCKSTEP_ASSIGN_OR_RETURN(const auto dry, next(nullptr));
  LOCKSTEP_ASSIGN_OR_RETURN(const auto keys, next(nullptr));
  if (keys.value.items() == nullptr) return absl::InvalidArgumentError("the list of its storages is damaged");
  std::map<std::string, size_t> offsets;
  for (const Value& key : *keys.value.items()) {
    const auto known = key.string() == nullptr ? dry.storages.end() : dry.storages.find(*key.string());
    if (known == dry.storages.end()) return absl::InvalidArgumentError("it lists a storage that nothing uses");
    const auto size = static_cast<size_t>(known->second);
    if (bytes.size() - at < 8 || size > bytes.size() - at - 8) {
      return absl::InvalidArgumentError("storage " + *key.string() + " is truncated");
    }
    offsets[*key.string()] = at + 8;
    at += 8 + size;
  }
  const auto read = [&](const std::string& key, int64_t size) -> absl::StatusOr<at::Tensor> {
    const auto offset = offsets.find(key);
    if (offset == offsets.end()) return absl::InvalidArgumentError("storage " + key + " is missing");
    return internal::StorageBytes(file->data() + offset->second, size, file, options.map_location);
  };
  LOCKSTEP_ASSIGN_OR_RETURN(auto unpickled, internal::Unpickle(bytes.substr(begin), read));
  return std::move(unpickled.value);
}

absl::StatusOr<Value> Load(const std::string& path, const LoadPthOptions& options) {
  LOCKSTEP_ASSIGN_OR_RETURN(const auto file, MappedFile::Open(path));
  const std::string_view bytes(file->data(), file->size());
  if (bytes.substr(0, kLegacyMagic.size()) == kLegacyMagic) return LoadLegacy(file, options);
  if (bytes.size() > 262 && bytes.substr(257, 5) == "ustar") {
    return absl::InvalidArgumentError(
        "in the oldest format, a tar file, which weights_only doesn't read in Python either");
  }
  return LoadZip(file, options);
}

}  // namespace

absl::StatusOr<Value> LoadPth(const std::string& path, const LoadPthOptions& options) {
  return internal::LoadNamed(path, [&] { return Load(path, options); });
}

}  // namespace lockstep
