// TensorBoard's events are protocol buffers in TFRecord frames. They are encoded by hand here: these are a handful of
// fields, and LibTorch carries a protobuf of its own, beside which another one asks for clashes of symbols.
// The sources: tensorboard/compat/proto/{event,summary,tensor}.proto and tensorflow/core/lib/io/record_writer.cc.

#include "lockstep/metrics/event_writer.h"

#include <absl/strings/str_cat.h>
#include <absl/strings/str_format.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <string_view>
#include <system_error>

#include "lockstep/metrics/internal/crc32c.h"
#include "lockstep/metrics/internal/markup.h"

namespace lockstep {
namespace {

// Protocol buffers: a field is its number and kind, and then a varint, 8 bytes, a length and bytes, or 4 bytes.
enum Kind { kVarint = 0, kFixed64 = 1, kBytes = 2, kFixed32 = 5 };

std::string Varint(uint64_t value) {
  std::string bytes;
  for (; value >= 0x80; value >>= 7) bytes.push_back(static_cast<char>(value | 0x80));
  bytes.push_back(static_cast<char>(value));
  return bytes;
}

/// The bytes of a number, low ones first, as all of these formats have them and all our machines.
template <typename T>
std::string Fixed(T value) {
  std::string bytes(sizeof value, '\0');
  std::memcpy(bytes.data(), &value, sizeof value);
  return bytes;
}

std::string Key(int field, Kind kind) { return Varint(static_cast<uint64_t>(field) << 3 | kind); }
std::string Number(int field, uint64_t value) { return Key(field, kVarint) + Varint(value); }
std::string Double(int field, double value) { return Key(field, kFixed64) + Fixed(value); }
std::string Float(int field, float value) { return Key(field, kFixed32) + Fixed(value); }
std::string Bytes(int field, const std::string& bytes) { return Key(field, kBytes) + Varint(bytes.size()) + bytes; }
std::string String(int field, const std::string& text) { return Bytes(field, internal::ValidUtf8(text)); }

// Fields of Event.
std::string FileVersion(const std::string& version) { return String(3, version); }
std::string Summary(const std::string& values) { return Bytes(5, values); }
std::string SessionStart() { return Bytes(7, Number(/*status=*/1, /*START=*/1)); }

/// A field of Summary.
std::string Value(const std::string& tag, const std::string& content) { return Bytes(1, String(1, tag) + content); }

std::string Record(const std::string& event) {
  const auto masked = [](std::string_view bytes) {
    const uint32_t crc = internal::Crc32c(bytes);
    return Fixed((crc >> 15 | crc << 17) + 0xA282EAD8u);
  };
  const std::string length = Fixed(static_cast<uint64_t>(event.size()));
  return length + masked(length) + event + masked(event);
}

}  // namespace

absl::Status EventWriter::Open(const std::string& folder, int64_t first_step) {
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  if (error) return absl::UnavailableError(absl::StrCat("folder ", folder, ": cannot be made: ", error.message()));
  // TensorBoard reads the files of a folder in the order of their names.
  const auto now =
      std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::system_clock::now().time_since_epoch()).count();
  path_ = absl::StrFormat("%s/events.out.tfevents.%010d.%09d.%d", folder, now / 1'000'000'000, now % 1'000'000'000,
                          getpid());
  errno = 0;
  file_ = std::ofstream(path_, std::ios::binary);
  if (!file_) return Error();
  absl::Status status = Write(0, FileVersion("brain.Event:2"));
  if (status.ok()) status = Write(first_step, SessionStart());
  return status;
}

absl::Status EventWriter::AddScalars(int64_t step, const std::vector<std::pair<std::string, double>>& scalars) {
  std::string values;
  for (const auto& [tag, value] : scalars) values += Value(tag, Float(/*simple_value=*/2, static_cast<float>(value)));
  return Write(step, Summary(values));
}

absl::Status EventWriter::AddText(int64_t step, const std::string& tag, const std::string& text) {
  const std::string shape = Bytes(/*dim=*/2, Number(/*size=*/1, 1));
  const std::string tensor = Number(/*dtype=*/1, /*DT_STRING=*/7) + Bytes(/*tensor_shape=*/2, shape) +
                             Bytes(/*string_val=*/8, internal::ValidUtf8(text));
  const std::string metadata = Bytes(/*plugin_data=*/1, String(/*plugin_name=*/1, "text"));
  return Write(step, Summary(Value(tag, Bytes(/*tensor=*/8, tensor) + Bytes(/*metadata=*/9, metadata))));
}

absl::Status EventWriter::Write(int64_t step, const std::string& what) {
  const double now = std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
  const std::string record =
      Record(Double(/*wall_time=*/1, now) + Number(/*step=*/2, static_cast<uint64_t>(step)) + what);
  errno = 0;
  file_.write(record.data(), static_cast<std::streamsize>(record.size()));
  file_.flush();
  if (file_) return absl::OkStatus();
  file_.clear();
  return Error();
}

absl::Status EventWriter::Error() const {
  return absl::UnavailableError(absl::StrCat("file ", path_, ": cannot be written: ", std::strerror(errno)));
}

}  // namespace lockstep
