#include "lockstep/data/archive.h"

#include <absl/strings/escaping.h>
#include <absl/strings/numbers.h>
#include <absl/strings/str_cat.h>
#include <archive.h>
#include <archive_entry.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zlib.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <filesystem>
#include <memory>
#include <system_error>
#include <vector>

#include "lockstep/base/prefixed.h"
#include "lockstep/base/status_macros.h"

namespace lockstep {
namespace {

namespace fs = std::filesystem;

absl::Status SystemError(const std::string& what, int error) {
  const std::string text = absl::StrCat(what, ": ", std::strerror(error));
  return error == ENOSPC || error == EDQUOT || error == EFBIG ? absl::ResourceExhaustedError(text)
                                                              : absl::UnavailableError(text);
}

/// A folder beside `path` that is removed unless it was renamed; and those are removed whose process has ended.
class TemporaryFolder {
 public:
  explicit TemporaryFolder(const std::string& path) : path_(absl::StrCat(path, ".tmp.", getpid())) {
    const std::string begin = fs::path(path).filename().string() + ".tmp.";
    const fs::path parent = fs::path(path).parent_path();
    std::error_code ignored;
    for (const auto& entry : fs::directory_iterator(parent.empty() ? "." : parent, ignored)) {
      const std::string name = entry.path().filename().string();
      int pid = 0;
      if (name.rfind(begin, 0) != 0 || !absl::SimpleAtoi(name.substr(begin.size()), &pid) || pid <= 0) continue;
      if (pid == getpid() || (kill(pid, 0) != 0 && errno == ESRCH)) fs::remove_all(entry.path(), ignored);
    }
  }
  ~TemporaryFolder() {
    std::error_code ignored;
    fs::remove_all(path_, ignored);
  }
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;

  const std::string& path() const { return path_; }

 private:
  const std::string path_;
};

struct Descriptor {
  explicit Descriptor(int fd) : fd(fd) {}
  ~Descriptor() {
    if (fd >= 0) close(fd);
  }
  const int fd;
};

const char* NameOf(archive_entry* entry) {
  const char* name = archive_entry_pathname(entry);
  if (name == nullptr) name = archive_entry_pathname_utf8(entry);  // one that the locale doesn't know
  return name == nullptr ? "" : name;
}

/// Where an entry goes below the folder; nothing but a file or a folder inside of it passes.
absl::StatusOr<fs::path> PlaceOf(archive_entry* entry, const std::string& name) {
  const auto type = archive_entry_filetype(entry);
  if (archive_entry_hardlink(entry) != nullptr || (type != AE_IFREG && type != AE_IFDIR)) {
    return absl::InvalidArgumentError(absl::StrCat("'", name, "' is neither a file nor a folder"));
  }
  const char* path = NameOf(entry);
  if (*path == '\0') return absl::InvalidArgumentError("a file without a name");
  fs::path place;
  if (*path == '/') return absl::InvalidArgumentError(absl::StrCat("'", name, "' has an absolute path"));
  for (const fs::path& part : fs::path(path)) {
    if (part == "..") return absl::InvalidArgumentError(absl::StrCat("'", name, "' leads out of the folder"));
    if (part != "." && !part.empty()) place /= part;
  }
  return place;
}

class Unpacker {
 public:
  Unpacker(const std::string& folder, const UnpackLimits& limits)
      : folder_(folder), limits_(limits), reader_(archive_read_new(), &archive_read_free) {}

  absl::Status Run(const std::string& path) {
    if (reader_ == nullptr) return absl::ResourceExhaustedError("no memory");
    archive* a = reader_.get();
    // Those that are compiled in: others would start a program.
    archive_read_support_filter_gzip(a);
    archive_read_support_filter_bzip2(a);
    archive_read_support_filter_xz(a);
    archive_read_support_format_tar(a);
    archive_read_support_format_zip(a);
    if (archive_read_open_filename(a, path.c_str(), 1 << 17) != ARCHIVE_OK) return Damaged();
    archive_entry* entry = nullptr;
    int64_t files = 0;
    while (true) {
      const int next = archive_read_next_header(a, &entry);
      if (next == ARCHIVE_EOF) break;
      if (next != ARCHIVE_OK && next != ARCHIVE_WARN) return Damaged();  // a warning of the locale, for one
      if (++files > limits_.files) {
        return absl::ResourceExhaustedError(absl::StrCat("more than ", limits_.files, " files; raise the limit"));
      }
      const std::string name = absl::Utf8SafeCHexEscape(NameOf(entry));  // it goes to a terminal
      LOCKSTEP_ASSIGN_OR_RETURN(const fs::path place, PlaceOf(entry, name));
      const bool is_folder = archive_entry_filetype(entry) == AE_IFDIR;
      if (place.empty() && !is_folder) return absl::InvalidArgumentError("a file without a name");
      const fs::path target = place.empty() ? fs::path(folder_) : folder_ / place;
      std::error_code error;
      fs::create_directories(is_folder ? target : target.parent_path(), error);
      if (error) return SystemError(absl::StrCat("cannot make the folder of '", name, "'"), error.value());
      if (!is_folder) LOCKSTEP_RETURN_IF_ERROR(WriteFile(target, name, entry));
    }
    if (files == 0) return absl::InvalidArgumentError("nothing is in it");
    return absl::OkStatus();
  }

 private:
  absl::Status Damaged() {
    const char* why = archive_error_string(reader_.get());
    return absl::InvalidArgumentError(
        absl::StrCat("damaged, truncated, or no tar or zip file: ", why == nullptr ? "" : why));
  }

  absl::Status WriteFile(const fs::path& target, const std::string& name, archive_entry* entry) {
    const Descriptor file(open(target.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_NOFOLLOW | O_CLOEXEC, 0644));
    if (file.fd < 0) return SystemError(absl::StrCat("cannot write '", name, "'"), errno);
    const auto fits = [&](int64_t size) { return size >= 0 && size <= limits_.bytes - written_; };
    const auto too_large = [&] {
      return absl::ResourceExhaustedError(
          absl::StrCat("'", name, "' takes it past ", limits_.bytes, " bytes; raise the limit"));
    };
    const int64_t promised = archive_entry_size_is_set(entry) != 0 ? archive_entry_size(entry) : 0;
    if (!fits(promised)) return too_large();
    int64_t end = 0;
    while (true) {
      const void* data = nullptr;
      size_t size = 0;
      la_int64_t offset = 0;
      const int read = archive_read_data_block(reader_.get(), &data, &size, &offset);
      if (read == ARCHIVE_EOF) break;
      if (read != ARCHIVE_OK) return Damaged();
      if (!fits(offset) || !fits(offset + static_cast<int64_t>(size))) return too_large();
      for (size_t done = 0; done < size;) {
        const ssize_t n = pwrite(file.fd, static_cast<const char*>(data) + done, size - done,
                                 static_cast<off_t>(offset + static_cast<int64_t>(done)));
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0) return SystemError(absl::StrCat("cannot write '", name, "'"), errno);
        done += static_cast<size_t>(n);
      }
      end = std::max(end, offset + static_cast<int64_t>(size));
    }
    // A sparse file may end in a hole.
    if (end < promised && ftruncate(file.fd, promised) != 0) {
      return SystemError(absl::StrCat("cannot write '", name, "'"), errno);
    }
    written_ += std::max(end, promised);
    return absl::OkStatus();
  }

  const fs::path folder_;
  const UnpackLimits limits_;
  int64_t written_ = 0;
  const std::unique_ptr<archive, int (*)(archive*)> reader_;
};

/// Everything that was written, before it gets its name.
absl::Status Flush(const std::string& folder) {
  const Descriptor file(open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (file.fd < 0 || syncfs(file.fd) != 0) return SystemError("cannot be flushed to the disk", errno);
  return absl::OkStatus();
}

/// libarchive doesn't compare the checksum of a gzip file; other files pass.
absl::Status CheckGzip(const std::string& path) {
  const std::unique_ptr<gzFile_s, int (*)(gzFile)> file(gzopen(path.c_str(), "rb"), &gzclose);
  if (file == nullptr) return SystemError("cannot be opened", errno);
  if (gzdirect(file.get()) != 0) return absl::OkStatus();
  std::vector<char> bytes(1 << 18);
  int read = 0;
  while ((read = gzread(file.get(), bytes.data(), static_cast<unsigned>(bytes.size()))) > 0) {
  }
  int code = Z_OK;
  const std::string what = gzerror(file.get(), &code);
  if (code == Z_OK || code == Z_STREAM_END) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("damaged or truncated: ", what));
}

absl::Status UnpackInto(const std::string& archive, const std::string& folder, const UnpackLimits& limits) {
  struct stat info {};
  if (stat(archive.c_str(), &info) != 0) {
    return errno == ENOENT || errno == ENOTDIR ? absl::NotFoundError("no such file")
                                               : SystemError("cannot be opened", errno);
  }
  if (!S_ISREG(info.st_mode)) return absl::InvalidArgumentError("not a regular file");
  LOCKSTEP_RETURN_IF_ERROR(CheckGzip(archive));
  const TemporaryFolder temporary(folder);
  std::error_code error;
  fs::create_directories(temporary.path(), error);
  if (error) return SystemError(absl::StrCat("cannot make the folder ", folder), error.value());
  LOCKSTEP_RETURN_IF_ERROR(Unpacker(temporary.path(), limits).Run(archive));
  LOCKSTEP_RETURN_IF_ERROR(Flush(temporary.path()));
  if (rename(temporary.path().c_str(), folder.c_str()) != 0 && errno != ENOTEMPTY && errno != EEXIST) {
    return SystemError(absl::StrCat("cannot be renamed to ", folder), errno);
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status Unpack(const std::string& archive, const std::string& folder, const UnpackLimits& limits) {
  const fs::path place = fs::path(folder).has_filename() ? fs::path(folder) : fs::path(folder).parent_path();
  std::error_code ignored;
  if (fs::is_directory(place, ignored)) return absl::OkStatus();
  return Prefixed(absl::StrCat("archive ", archive, ": "), UnpackInto(archive, place.string(), limits));
}

}  // namespace lockstep
