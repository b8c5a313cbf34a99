#include <absl/status/status.h>
#include <absl/strings/escaping.h>
#include <absl/strings/str_cat.h>
#include <ATen/Functions.h>
#include <sys/stat.h>

#include <cctype>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <memory>
#include <vector>

#include "lockstep/base/status_macros.h"
#include "lockstep/data/mnist.h"

namespace lockstep {
namespace {

constexpr int kPixels = 28 * 28;

absl::StatusOr<std::vector<char>> ReadFile(const std::string& path) {
  struct stat info {};  // before it is opened, which waits for a writer if it is a pipe
  if (stat(path.c_str(), &info) != 0) {
    return absl::NotFoundError(absl::StrCat("MNIST CSV ", path, ": ", std::strerror(errno)));
  }
  if (!S_ISREG(info.st_mode))
    return absl::InvalidArgumentError(absl::StrCat("MNIST CSV ", path, ": not a regular file"));
  const std::unique_ptr<FILE, int (*)(FILE*)> file(std::fopen(path.c_str(), "rb"), &std::fclose);
  if (file == nullptr) return absl::NotFoundError(absl::StrCat("MNIST CSV ", path, ": ", std::strerror(errno)));
  std::vector<char> bytes(info.st_size + 1);
  const size_t read = std::fread(bytes.data(), 1, info.st_size, file.get());
  if (std::ferror(file.get())) return absl::DataLossError(absl::StrCat("MNIST CSV ", path, ": cannot be read"));
  bytes.resize(read + 1);
  bytes[read] = '\0';  // ends the last number without a look at the length
  return bytes;
}

/// What stands in a field, for an error.
std::string Field(const char* p, const char* end) {
  const char* stop = p;
  while (stop < end && *stop != ',' && *stop != '\n' && *stop != '\r' && stop - p < 20) ++stop;
  return absl::Utf8SafeCHexEscape(absl::string_view(p, stop - p));  // it goes to a terminal
}

/// A header has a name where a row has its label, and another where it has its first pixel; a row with a damaged label
/// has a number there.
bool IsHeader(const char* p, const char* end) {
  const auto name = [&](const char* q) {
    if (q < end && *q == '"') ++q;
    return q < end && (std::isalpha(static_cast<unsigned char>(*q)) || *q == '_');
  };
  const char* line_end = static_cast<const char*>(std::memchr(p, '\n', end - p));
  const char* comma = static_cast<const char*>(std::memchr(p, ',', (line_end == nullptr ? end : line_end) - p));
  return name(p) && (comma == nullptr || name(comma + 1));
}

bool IsBlank(const char* p, const char* line_end) {
  for (; p < line_end; ++p) {
    if (*p != ' ' && *p != '\t' && *p != '\r') return false;
  }
  return true;
}

}  // namespace

absl::StatusOr<MnistData> LoadMnistCsv(const std::string& path) {
  LOCKSTEP_ASSIGN_OR_RETURN(const std::vector<char> bytes, ReadFile(path));
  const char* p = bytes.data();
  const char* const end = p + bytes.size() - 1;
  const auto error = [&](int64_t row, int column, const std::string& what) {
    return absl::InvalidArgumentError(absl::StrCat("MNIST CSV ", path, ": row ", row, ", column ", column, ": ", what));
  };
  if (end - p >= 3 && std::memcmp(p, "\xEF\xBB\xBF", 3) == 0) p += 3;

  int64_t row = 1;
  if (IsHeader(p, end)) {
    const char* newline = static_cast<const char*>(std::memchr(p, '\n', end - p));
    p = newline == nullptr ? end : newline + 1;
    ++row;
  }

  // A row is at least two characters a column.
  const int64_t most = (end - p) / (2 * kPixels + 1) + 2;
  at::Tensor images = at::empty({most, 1, 28, 28}, at::kByte);
  at::Tensor labels = at::empty({most}, at::kLong);
  uint8_t* pixel = images.mutable_data_ptr<uint8_t>();
  int64_t* label = labels.mutable_data_ptr<int64_t>();
  int64_t count = 0;
  for (; p < end; ++row) {
    const char* const newline = static_cast<const char*>(std::memchr(p, '\n', end - p));
    const char* const line_end = newline == nullptr ? end : newline;
    if (IsBlank(p, line_end)) {
      // Only at the end of the file.
      for (const char* q = line_end; q < end; ++q) {
        if (!std::isspace(static_cast<unsigned char>(*q))) return error(row, 1, "a blank line between rows");
      }
      break;
    }
    for (int column = 0; column <= kPixels; ++column) {
      const char* const field = p;
      while (*p == ' ') ++p;
      unsigned value = 0;
      const char* const digits = p;
      while (static_cast<unsigned char>(*p - '0') < 10 && p - digits < 4) value = value * 10 + (*p++ - '0');
      while (*p == ' ') ++p;
      const bool at_end = p == line_end || (*p == '\r' && p + 1 == line_end);
      if (p == digits || (*p != ',' && !at_end)) {
        if (p == digits && at_end && column > 0 && field == p) {
          return error(row, column + 1, "an empty field");
        }
        return error(
            row, column + 1,
            absl::StrCat("'", Field(field, line_end), "' is no whole number from 0 to ", column == 0 ? 9 : 255));
      }
      if (column == 0) {
        if (value > 9) return error(row, 1, absl::StrCat("label ", Field(field, line_end), " is not from 0 to 9"));
        label[count] = value;
      } else {
        if (value > 255) {
          return error(row, column + 1, absl::StrCat("pixel ", Field(field, line_end), " is not from 0 to 255"));
        }
        pixel[count * kPixels + column - 1] = static_cast<uint8_t>(value);
      }
      if (at_end && column < kPixels) {
        return error(row, column + 1, absl::StrCat("the row ends after ", column + 1, " columns; want ", kPixels + 1));
      }
      if (!at_end && column == kPixels) {
        int columns = kPixels + 1;
        for (const char* q = p; q < line_end; ++q) columns += *q == ',';
        return error(row, kPixels + 2, absl::StrCat("the row has ", columns, " columns; want ", kPixels + 1));
      }
      if (!at_end) ++p;  // the comma
    }
    ++count;
    p = newline == nullptr ? end : newline + 1;
  }
  if (count == 0) return absl::InvalidArgumentError(absl::StrCat("MNIST CSV ", path, ": no rows in the file"));
  return MnistData{images.narrow(0, 0, count).clone(), labels.narrow(0, 0, count).clone()};
}

}  // namespace lockstep
