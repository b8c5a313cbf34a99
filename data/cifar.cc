#include "lockstep/data/cifar.h"

#include <absl/status/status.h>
#include <absl/strings/str_cat.h>
#include <absl/strings/str_join.h>
#include <ATen/Functions.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <memory>
#include <utility>

#include "lockstep/base/status_macros.h"
#include "lockstep/checkpoint/pickle_file.h"
#include "lockstep/data/archive.h"

namespace lockstep {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kPixels = 3 * 32 * 32;

/// One of the two ways in which the pictures are published.
struct Format {
  const char* folder;
  const char* archive;
  std::vector<std::string> train, test;
  std::vector<std::string> names;  // files of the names of labels
};

struct Publication {
  const char* name;
  Format binary, pickled;
};

const Publication& Cifar10() {
  static const auto* const publication = new Publication{
      "CIFAR-10",
      {"cifar-10-batches-bin",
       "cifar-10-binary.tar.gz",
       {"data_batch_1.bin", "data_batch_2.bin", "data_batch_3.bin", "data_batch_4.bin", "data_batch_5.bin"},
       {"test_batch.bin"},
       {"batches.meta.txt"}},
      {"cifar-10-batches-py",
       "cifar-10-python.tar.gz",
       {"data_batch_1", "data_batch_2", "data_batch_3", "data_batch_4", "data_batch_5"},
       {"test_batch"},
       {"batches.meta"}}};
  return *publication;
}

const Publication& Cifar100() {
  static const auto* const publication =
      new Publication{"CIFAR-100",
                      {"cifar-100-binary",
                       "cifar-100-binary.tar.gz",
                       {"train.bin"},
                       {"test.bin"},
                       {"fine_label_names.txt", "coarse_label_names.txt"}},
                      {"cifar-100-python", "cifar-100-python.tar.gz", {"train"}, {"test"}, {"meta"}}};
  return *publication;
}

/// Which of a file's labels, and how it is found.
struct Labels {
  int64_t count;
  int64_t columns;         // labels before the pixels, in the binary format
  int64_t column;          // the one that is wanted
  const char* names_file;  // in the binary format
  const char* key;         // in a pickle
  const char* names_key;   // in the pickle of names
};
constexpr Labels kTen{10, 1, 0, "batches.meta.txt", "labels", "label_names"};
constexpr Labels kFine{100, 2, 1, "fine_label_names.txt", "fine_labels", "fine_label_names"};
constexpr Labels kCoarse{20, 2, 0, "coarse_label_names.txt", "coarse_labels", "coarse_label_names"};

bool IsFolder(const fs::path& path) {
  std::error_code ignored;
  return fs::is_directory(path, ignored);
}

/// Any of the files will do: what is missing is named when it is read.
bool Holds(const fs::path& folder, const Format& format) {
  for (const auto* files : {&format.train, &format.test, &format.names}) {
    for (const std::string& file : *files) {
      std::error_code ignored;
      if (fs::exists(folder / file, ignored) && !fs::is_directory(folder / file, ignored)) return true;
    }
  }
  return false;
}

std::string FilesOf(const Format& format) {
  std::vector<std::string> files = format.train;
  files.insert(files.end(), format.test.begin(), format.test.end());
  files.insert(files.end(), format.names.begin(), format.names.end());
  return absl::StrCat(format.folder, " (", absl::StrJoin(files, ", "), ")");
}

absl::Status Missing(const std::string& path, const Publication& wanted) {
  return absl::NotFoundError(absl::StrCat(
      wanted.name, " is not in ", path, ". Put one of these there, or name it: the folder ", FilesOf(wanted.binary),
      ", the folder ", FilesOf(wanted.pickled), ", or the file ", wanted.binary.archive, " or ", wanted.pickled.archive,
      " (https://www.cs.toronto.edu/~kriz/cifar.html); nothing is fetched"));
}

/// The folder of batches in a folder, without a look into archives; empty if there is none.
std::string FindBatches(const fs::path& path, const Publication& wanted) {
  for (const Format* format : {&wanted.binary, &wanted.pickled}) {
    if (Holds(path, *format)) return path.string();
    if (Holds(path / format->folder, *format)) return (path / format->folder).string();
  }
  return "";
}

absl::StatusOr<std::string> FindInArchive(const std::string& archive, const Publication& wanted) {
  std::string folder = archive;
  for (const char* ending : {".gz", ".tar", ".tgz"}) {
    if (fs::path(folder).extension() == ending) folder = fs::path(folder).replace_extension().string();
  }
  if (folder == archive) folder += ".unpacked";
  LOCKSTEP_RETURN_IF_ERROR(Unpack(archive, folder));
  const std::string batches = FindBatches(folder, wanted);
  if (!batches.empty()) return batches;
  return absl::NotFoundError(absl::StrCat(wanted.name, " is not in ", folder, ", where ", archive,
                                          " was unpacked; remove it if it is of another archive"));
}

absl::StatusOr<std::string> Find(const std::string& path, const Publication& wanted) {
  std::error_code ignored;
  if (!IsFolder(path)) return fs::exists(path, ignored) ? FindInArchive(path, wanted) : Missing(path, wanted);
  const std::string batches = FindBatches(path, wanted);
  if (!batches.empty()) return batches;
  for (const Format* format : {&wanted.binary, &wanted.pickled}) {
    const fs::path archive = fs::path(path) / format->archive;
    if (fs::exists(archive, ignored)) return FindInArchive(archive.string(), wanted);
  }
  return Missing(path, wanted);
}

absl::Status FileError(const std::string& path, const std::string& what) {
  return absl::InvalidArgumentError(absl::StrCat("CIFAR file ", path, ": ", what));
}

absl::Status CheckLabels(const std::string& path, const at::Tensor& labels, const Labels& wanted) {
  if (labels.numel() == 0) return FileError(path, "no pictures in it");
  const auto least = labels.min().item<int64_t>(), most = labels.max().item<int64_t>();
  if (least >= 0 && most < wanted.count) return absl::OkStatus();
  return FileError(path, absl::StrCat("label ", least < 0 ? least : most, " is not from 0 to ", wanted.count - 1));
}

absl::StatusOr<CifarData> ReadBinary(const std::string& path, const Labels& wanted) {
  std::error_code error;
  const auto status = fs::status(path, error);
  if (status.type() == fs::file_type::not_found) {
    return absl::NotFoundError(absl::StrCat("CIFAR file ", path, ": no such file"));
  }
  if (!fs::is_regular_file(status)) return FileError(path, "not a regular file");
  const auto size = static_cast<int64_t>(fs::file_size(path, error));
  const int64_t record = wanted.columns + kPixels;
  if (error) return FileError(path, error.message());
  if (size == 0) return FileError(path, "the file is empty");
  if (size % record != 0) {
    return FileError(
        path, absl::StrCat("truncated or damaged: ", size, " bytes are no multiple of ", record, ", a picture's"));
  }
  const std::unique_ptr<FILE, int (*)(FILE*)> file(std::fopen(path.c_str(), "rb"), &std::fclose);
  if (file == nullptr) return absl::UnavailableError(absl::StrCat("CIFAR file ", path, ": ", std::strerror(errno)));
  at::Tensor records = at::empty({size / record, record}, at::kByte);
  if (std::fread(records.mutable_data_ptr(), 1, size, file.get()) != static_cast<size_t>(size)) {
    return absl::UnavailableError(absl::StrCat("CIFAR file ", path, ": cannot be read"));
  }
  CifarData data;
  data.labels = records.select(1, wanted.column).to(at::kLong);
  data.images = records.narrow(1, wanted.columns, kPixels).reshape({-1, 3, 32, 32});
  return data;
}

absl::StatusOr<CifarData> ReadPickle(const std::string& path, const Labels& wanted) {
  LOCKSTEP_ASSIGN_OR_RETURN(const Value batch, LoadPickle(path));
  const Value *pixels = batch.find("data"), *labels = batch.find(wanted.key);
  if (pixels == nullptr || labels == nullptr) {
    return FileError(path, absl::StrCat("has no '", pixels == nullptr ? "data" : wanted.key, "'"));
  }
  const at::Tensor* images = pixels->tensor();
  if (images == nullptr || images->scalar_type() != at::kByte || images->dim() != 2 || images->size(1) != kPixels) {
    return FileError(path, "its 'data' is no array of bytes with 3072 in each row");
  }
  const ValueList* items = labels->items();
  if (items == nullptr || static_cast<int64_t>(items->size()) != images->size(0)) {
    return FileError(
        path, absl::StrCat("its '", wanted.key, "' is no list with as many labels as pictures, ", images->size(0)));
  }
  CifarData data;
  data.labels = at::empty({images->size(0)}, at::kLong);
  auto* label = data.labels.mutable_data_ptr<int64_t>();
  for (const Value& item : *items) {
    const auto* n = std::get_if<int64_t>(&item.get());
    if (n == nullptr) return FileError(path, absl::StrCat("a label of type ", item.type_name()));
    *label++ = *n;
  }
  data.images = images->reshape({-1, 3, 32, 32});
  return data;
}

absl::StatusOr<std::vector<std::string>> ReadNames(const fs::path& folder, const Publication& publication, bool binary,
                                                   const Labels& wanted) {
  const std::string path = (folder / (binary ? wanted.names_file : publication.pickled.names[0].c_str())).string();
  std::vector<std::string> names;
  if (binary) {
    std::ifstream file(path);
    if (!file || IsFolder(path)) return absl::NotFoundError(absl::StrCat("CIFAR file ", path, ": no such file"));
    for (std::string line; std::getline(file, line) && names.size() <= static_cast<size_t>(wanted.count);) {
      while (!line.empty() && (line.back() == '\r' || line.back() == ' ')) line.pop_back();
      if (!line.empty()) names.push_back(line);
    }
  } else {
    LOCKSTEP_ASSIGN_OR_RETURN(const Value meta, LoadPickle(path));
    const Value* list = meta.find(wanted.names_key);
    if (list == nullptr || list->items() == nullptr) {
      return FileError(path, absl::StrCat("has no list '", wanted.names_key, "'"));
    }
    for (const Value& name : *list->items()) {
      if (name.string() == nullptr) return FileError(path, absl::StrCat("a name of type ", name.type_name()));
      names.push_back(*name.string());
    }
  }
  if (static_cast<int64_t>(names.size()) == wanted.count) return names;
  return FileError(path, absl::StrCat("it must have the names of ", wanted.count, " labels"));
}

absl::StatusOr<CifarData> Load(const std::string& path, const Publication& publication, const Labels& wanted,
                               CifarSplit split) {
  LOCKSTEP_ASSIGN_OR_RETURN(const std::string folder, Find(path, publication));
  const bool binary = Holds(folder, publication.binary);
  const Format& format = binary ? publication.binary : publication.pickled;
  std::vector<at::Tensor> images, labels;
  for (const std::string& name : split == CifarSplit::kTrain ? format.train : format.test) {
    const std::string file = (fs::path(folder) / name).string();
    LOCKSTEP_ASSIGN_OR_RETURN(CifarData part, binary ? ReadBinary(file, wanted) : ReadPickle(file, wanted));
    LOCKSTEP_RETURN_IF_ERROR(CheckLabels(file, part.labels, wanted));
    images.push_back(std::move(part.images));
    labels.push_back(std::move(part.labels));
  }
  CifarData data{at::cat(images), at::cat(labels), {}};
  LOCKSTEP_ASSIGN_OR_RETURN(data.classes, ReadNames(folder, publication, binary, wanted));
  return data;
}

}  // namespace

absl::StatusOr<CifarData> LoadCifar10(const std::string& path, CifarSplit split) {
  return Load(path, Cifar10(), kTen, split);
}

absl::StatusOr<CifarData> LoadCifar100(const std::string& path, CifarSplit split, Cifar100Labels labels) {
  return Load(path, Cifar100(), labels == Cifar100Labels::kFine ? kFine : kCoarse, split);
}

absl::StatusOr<std::string> FindCifar10(const std::string& path) { return Find(path, Cifar10()); }

absl::StatusOr<std::string> FindCifar100(const std::string& path) { return Find(path, Cifar100()); }

}  // namespace lockstep
