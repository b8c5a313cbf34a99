#include "lockstep/checkpoint/internal/zip_reader.h"

#include <absl/status/status.h>
#include <absl/strings/str_cat.h>
#include <zlib.h>

#include <algorithm>
#include <cstring>
#include <new>

#include "lockstep/base/status_macros.h"
#include "lockstep/checkpoint/internal/crc32.h"

namespace lockstep::internal {
namespace {

absl::Status Error(const std::string& what) { return absl::InvalidArgumentError("zip: " + what); }

/// Little-endian numbers of a range of bytes; 0 past its end, which `ok` then tells.
class Cursor {
 public:
  Cursor(const char* data, size_t size, uint64_t at) : data_(data), size_(size), at_(at) {}
  uint16_t U16() { return Read<uint16_t>(); }
  uint32_t U32() { return Read<uint32_t>(); }
  uint64_t U64() { return Read<uint64_t>(); }
  std::string Text(size_t n) {
    if (!Has(n)) return "";
    at_ += n;
    return {data_ + at_ - n, n};
  }
  void Skip(uint64_t n) {
    if (Has(n)) at_ += n;
  }
  bool ok() const { return ok_; }
  uint64_t at() const { return at_; }

 private:
  bool Has(uint64_t n) { return ok_ = ok_ && at_ <= size_ && size_ - at_ >= n; }
  template <typename T>
  T Read() {
    T value = 0;
    if (!Has(sizeof(T))) return 0;
    std::memcpy(&value, data_ + at_, sizeof(T));
    at_ += sizeof(T);
    return value;
  }
  const char* data_;
  size_t size_;
  uint64_t at_;
  bool ok_ = true;
};

constexpr uint32_t kEnd = 0x06054b50, kEnd64 = 0x06064b50, kLocator64 = 0x07064b50, kEntry = 0x02014b50,
                   kLocal = 0x04034b50;
constexpr size_t kEndSize = 22, kLocator64Size = 20;

/// zlib takes sizes of 32 bits.
constexpr uint64_t kStep = 1 << 30;

bool Inflate(const char* from, uint64_t compressed, char* to, uint64_t size) {
  z_stream stream{};
  if (inflateInit2(&stream, -MAX_WBITS) != Z_OK) return false;
  stream.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(from));
  stream.next_out = reinterpret_cast<Bytef*>(to);
  uint64_t in = 0, out = 0;
  int result = Z_OK;
  while (result == Z_OK) {
    const uint64_t take = std::min(kStep, compressed - in), give = std::min(kStep, size - out);
    stream.avail_in = static_cast<uInt>(take);
    stream.avail_out = static_cast<uInt>(give);
    result = inflate(&stream, Z_NO_FLUSH);
    in += take - stream.avail_in;
    out += give - stream.avail_out;
    if (take - stream.avail_in == 0 && give - stream.avail_out == 0) break;
  }
  inflateEnd(&stream);
  return result == Z_STREAM_END && out == size;
}

}  // namespace

absl::StatusOr<ZipReader> ZipReader::Open(std::shared_ptr<MappedFile> file) {
  ZipReader reader(std::move(file));
  LOCKSTEP_RETURN_IF_ERROR(reader.ReadDirectory());
  return reader;
}

absl::Status ZipReader::ReadDirectory() {
  const char* const data = file_->data();
  const size_t size = file_->size();
  if (size < kEndSize) return Error("the end is missing");
  // The end record is last, but for a comment of at most 65,535 bytes.
  size_t end = size - kEndSize;
  const size_t least = end > 65535 ? end - 65535 : 0;
  const auto is = [&](size_t at, uint32_t signature) { return Cursor(data, size, at).U32() == signature; };
  while (end > least && !is(end, kEnd)) --end;
  if (!is(end, kEnd)) return Error("the end is missing: the file was cut, or is none");
  Cursor record(data, size, end + 4);
  const uint32_t disks = record.U32();
  record.Skip(2);
  uint64_t entries = record.U16(), directory_size = record.U32(), directory = record.U32();
  if (disks != 0) return Error("it is one of several files");
  if (entries == 0xFFFF || directory_size == 0xFFFFFFFF || directory == 0xFFFFFFFF) {
    if (end < kLocator64Size || !is(end - kLocator64Size, kLocator64)) return Error("the zip64 end is missing");
    Cursor locator(data, size, end - kLocator64Size + 8);
    const uint64_t end64 = locator.U64();
    if (!is(end64, kEnd64)) return Error("the zip64 end is missing");
    Cursor wide(data, size, end64 + 24);
    wide.Skip(8);
    entries = wide.U64();
    directory_size = wide.U64();
    directory = wide.U64();
    if (!wide.ok()) return Error("the zip64 end is cut");
  }
  if (directory > end || directory_size > end - directory) return Error("the directory lies outside the file");
  Cursor at(data, size, directory);
  for (uint64_t i = 0; i < entries; ++i) {
    if (at.U32() != kEntry) return Error("the directory is damaged");
    at.Skip(4);
    const uint16_t flags = at.U16(), method = at.U16();
    at.Skip(4);
    Member member{};
    member.crc = at.U32();
    member.compressed = at.U32();
    member.size = at.U32();
    const size_t name_size = at.U16(), extra_size = at.U16(), comment_size = at.U16();
    at.Skip(8);
    uint64_t header = at.U32();
    const std::string name = at.Text(name_size), extra = at.Text(extra_size);
    at.Skip(comment_size);
    if (!at.ok()) return Error("the directory is cut");
    // Where a number doesn't fit, the zip64 field has it.
    for (Cursor field(extra.data(), extra.size(), 0); field.at() + 4 <= extra.size();) {
      const uint16_t id = field.U16(), length = field.U16();
      const uint64_t next = field.at() + length;
      if (id == 1) {
        if (member.size == 0xFFFFFFFF) member.size = field.U64();
        if (member.compressed == 0xFFFFFFFF) member.compressed = field.U64();
        if (header == 0xFFFFFFFF) header = field.U64();
        if (!field.ok() || field.at() > next) return Error("member " + name + ": its sizes are damaged");
      }
      field = Cursor(extra.data(), extra.size(), next);
    }
    if ((flags & 1) != 0) return Error("member " + name + " is encrypted");
    if (method != 0 && method != 8) return Error(absl::StrCat("member ", name, ": unknown compression ", method));
    member.deflated = method == 8;
    Cursor local(data, size, header);
    if (local.U32() != kLocal) return Error("member " + name + ": its header is damaged");
    local.Skip(22);
    const uint64_t skip = uint64_t{local.U16()} + local.U16();
    local.Skip(skip);
    if (!local.ok() || member.compressed > size - local.at()) return Error("member " + name + " lies outside the file");
    if (!member.deflated && member.size != member.compressed) return Error("member " + name + ": two sizes");
    member.offset = local.at();
    if (!members_.emplace(name, member).second) return Error("member " + name + " is there twice");
  }
  return absl::OkStatus();
}

absl::StatusOr<ZipReader::Bytes> ZipReader::Read(const std::string& name, bool verify) {
  const auto found = members_.find(name);
  if (found == members_.end()) return Error("member " + name + " is missing");
  const Member& member = found->second;
  Bytes bytes{file_, file_->data() + member.offset, static_cast<size_t>(member.size)};
  if (member.deflated) {
    const uint64_t bound = (uint64_t{64} << 20) + 32 * static_cast<uint64_t>(file_->size());
    if (member.size > bound || inflated_ > bound - member.size) {
      return Error(absl::StrCat("member ", name, ": deflated members would take more than ", bound, " bytes"));
    }
    inflated_ += member.size;
    const std::shared_ptr<char> buffer(new (std::nothrow) char[member.size], std::default_delete<char[]>());
    if (buffer == nullptr) return absl::ResourceExhaustedError("no memory for member " + name);
    if (!Inflate(bytes.data, member.compressed, buffer.get(), member.size)) {
      return Error("member " + name + " is damaged");
    }
    bytes.owner = buffer;
    bytes.data = buffer.get();
  }
  if (!verify) return bytes;
  if (Crc32(bytes.data, bytes.size) != member.crc) return Error("member " + name + " is damaged: its checksum differs");
  if (!member.deflated) ReleaseUnchanged(bytes.data, bytes.size);  // or a file would be in memory twice for a while
  return bytes;
}

}  // namespace lockstep::internal
