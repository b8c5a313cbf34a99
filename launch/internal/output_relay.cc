#include "lockstep/launch/internal/output_relay.h"

#include <absl/strings/match.h>
#include <absl/strings/str_cat.h>
#include <absl/strings/string_view.h>
#include <fcntl.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

namespace lockstep {
namespace {

constexpr size_t kLongestLine = 16 << 20;  // beyond it a line is cut
constexpr size_t kTailBytes = 8192;
constexpr int kTailLines = 20;
constexpr size_t kReadAtOnce = 1 << 20;  // of one stream, before it is another's turn

/// The error, 0 for none.
int WriteFile(int fd, const char* data, size_t size) {
  while (size > 0) {
    const ssize_t n = write(fd, data, size);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return n < 0 ? errno : EIO;
    data += n;
    size -= static_cast<size_t>(n);
  }
  return 0;
}

/// Behind the last end of a line; 0: there is none. A carriage return ends one too, since a progress bar may show
/// nothing else for hours; but not as the last byte: a line feed may follow.
size_t EndOfLines(absl::string_view text) {
  const size_t feed = text.rfind('\n');  // npos + 1 is 0
  const size_t carriage_return = text.substr(0, std::max<size_t>(text.size(), 1) - 1).rfind('\r');
  return std::max(feed + 1, carriage_return + 1);
}

std::string PathOf(int fd) {
  char path[4096];
  const ssize_t n = readlink(absl::StrCat("/proc/self/fd/", fd).c_str(), path, sizeof(path));
  return n > 0 ? std::string(path, static_cast<size_t>(n)) : "a file of output";
}

}  // namespace

OutputRelay::~OutputRelay() {
  for (const auto& open : streams_) {
    if (open->fd >= 0) close(open->fd);
    if (open->stream.file >= 0) close(open->stream.file);
  }
}

int OutputRelay::Add(const Stream& stream) {
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) return -1;
  fcntl(ends[0], F_SETFL, O_NONBLOCK);
  auto open = std::make_unique<Open>();
  open->stream = stream;
  open->fd = ends[0];
  streams_.push_back(std::move(open));
  return ends[1];
}

void OutputRelay::AddTo(std::vector<pollfd>& waited) const {
  for (const auto& open : streams_) {
    if (open->fd >= 0) waited.push_back({open->fd, POLLIN, 0});
  }
}

void OutputRelay::Pump() {
  for (const auto& open : streams_) {
    if (open->fd < 0) continue;
    ConsoleWriter& console = open->stream.is_error ? err_ : out_;
    // Nobody reads it any more: the rank learns that as if it had written there itself.
    const bool useless = open->stream.to_console && open->stream.file < 0 && console.broken();
    if (!useless && Read(*open, kReadAtOnce)) continue;
    close(open->fd);
    open->fd = -1;
  }
}

void OutputRelay::Finish() {
  Pump();
  for (const auto& open : streams_) {
    // What the ranks have written is in the pipe by now. A process that got away may write on: that isn't waited for.
    int held = 0;
    if (open->fd >= 0 && ioctl(open->fd, FIONREAD, &held) == 0) Read(*open, static_cast<size_t>(held));
    if (open->line.empty()) continue;
    open->line += '\n';
    Emit(*open, open->line.size());
  }
}

bool OutputRelay::Read(Open& open, size_t most) {
  char buffer[65536];
  while (most > 0) {
    const ssize_t n = read(open.fd, buffer, std::min(most, sizeof(buffer)));
    if (n > 0) {
      Take(open, buffer, static_cast<size_t>(n));
      most -= static_cast<size_t>(n);
    } else {
      return n < 0 && (errno == EAGAIN || errno == EINTR);
    }
  }
  return true;
}

void OutputRelay::Take(Open& open, const char* data, size_t size) {
  if (open.stream.file >= 0) Keep(open.stream.file, data, size);
  if (open.stream.is_error) {
    open.tail.append(data, size);
    if (open.tail.size() > 2 * kTailBytes) open.tail.erase(0, open.tail.size() - kTailBytes);
  }
  if (!open.stream.to_console && open.stream.filters.empty()) return;
  // All whole lines at once. What was there before has no end of line, unless it is its last byte, and may be long.
  const size_t before = open.line.size() - (absl::EndsWith(open.line, "\r") ? 1 : 0);
  open.line.append(data, size);
  if (const size_t end = EndOfLines(absl::string_view(open.line).substr(before)); end > 0) Emit(open, before + end);
  if (open.line.size() > kLongestLine) {
    open.line += '\n';
    Emit(open, open.line.size());
  }
}

void OutputRelay::Keep(int file, const char* data, size_t size) {
  const int error = WriteFile(file, data, size);
  if (error == 0 || !warned_.insert(file).second) return;
  // A full disk ends no training.
  err_.Write(absl::StrCat("lockstep: ", PathOf(file), ": output is lost: ", std::strerror(error), "\n"));
}

void OutputRelay::Emit(Open& open, size_t size) {
  std::string shown;
  for (size_t begin = 0; begin < size;) {
    size_t end = open.line.find_first_of("\r\n", begin) + 1;
    if (end < size && open.line[end - 1] == '\r' && open.line[end] == '\n') ++end;
    const std::string line = open.line.substr(begin, end - begin);
    if (open.stream.to_console) shown += open.stream.prefix + line;
    const bool matches = std::any_of(open.stream.filters.begin(), open.stream.filters.end(),
                                     [&](const std::string& filter) { return line.find(filter) != std::string::npos; });
    if (matches && open.stream.filtered_file >= 0) {
      const std::string named = open.stream.prefix + line;
      Keep(open.stream.filtered_file, named.data(), named.size());
    }
    begin = end;
  }
  open.line.erase(0, size);
  if (!shown.empty()) (open.stream.is_error ? err_ : out_).Write(std::move(shown));
}

std::string OutputRelay::LastErrorLines(int local_rank) const {
  for (const auto& open : streams_) {
    if (!open->stream.is_error || open->stream.local_rank != local_rank) continue;
    const std::string& tail = open->tail;
    if (tail.empty()) return "";
    size_t begin = tail.back() == '\n' ? tail.size() - 1 : tail.size();
    for (int lines = 0; begin > 0; --begin) {
      if (tail[begin - 1] == '\n' && ++lines == kTailLines) break;
    }
    return tail.substr(begin);
  }
  return "";
}

}  // namespace lockstep
