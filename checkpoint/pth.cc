#include "lockstep/checkpoint/pth.h"

#include <absl/status/status.h>
#include <absl/strings/str_cat.h>
#include <caffe2/serialize/inline_container.h>
#include <ATen/Functions.h>
#include <sys/stat.h>

#include "lockstep/base/error_text.h"
#include "lockstep/base/status_macros.h"
#include "lockstep/checkpoint/atomic_file.h"
#include "lockstep/checkpoint/internal/pickle.h"

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

absl::StatusOr<Value> LoadPth(const std::string& path) {
  struct stat info {};
  if (stat(path.c_str(), &info) != 0) return absl::NotFoundError(absl::StrCat("checkpoint ", path, ": no such file"));
  const auto error = [&](const std::string& what) {
    return absl::InvalidArgumentError(absl::StrCat("checkpoint ", path, ": ", what));
  };
  if (!S_ISREG(info.st_mode)) return error("not a regular file");
  try {
    caffe2::serialize::PyTorchStreamReader reader(path);
    const auto read = [&](const std::string& key, at::ScalarType dtype, int64_t numel) -> absl::StatusOr<at::Tensor> {
      const std::string record = absl::StrCat("data/", key);
      if (!reader.hasRecord(record)) return absl::InvalidArgumentError("record " + record + " is missing");
      auto [data, size] = reader.getRecord(record);
      const auto itemsize = static_cast<int64_t>(c10::elementSize(dtype));
      if (static_cast<int64_t>(size) / itemsize != numel || size % itemsize != 0) {
        return absl::InvalidArgumentError(
            absl::StrCat("record ", record, " holds ", size, " bytes, not ", numel, " × ", itemsize));
      }
      void* const bytes = data.get();
      auto keep = std::make_shared<at::DataPtr>(std::move(data));
      return at::from_blob(
          bytes, {numel}, [keep](void*) {}, dtype);
    };
    auto [pickle, size] = reader.getRecord("data.pkl");
    auto value = internal::Unpickle(std::string(static_cast<const char*>(pickle.get()), size), read);
    if (!value.ok()) return error(std::string(value.status().message()));
    return value;
  } catch (const std::exception& e) {
    return error("damaged or no .pth file: " + FirstLine(e.what()));
  }
}

}  // namespace lockstep
