#include "lockstep/launch/internal/first_failure.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <nlohmann/json.hpp>
#include <sstream>

namespace lockstep {
namespace {

constexpr size_t kLongestMessage = 64 << 10;  // it is for people, and other hosts are told it
constexpr size_t kMostRead = 1 << 20;         // with what is around the message

std::string Indented(const std::string& text) {
  std::istringstream lines(text);
  std::string result;
  for (std::string line; std::getline(lines, line);) result += "    " + line + "\n";
  return result;
}

/// Of a file that a rank may have made into anything: nothing of one that isn't an ordinary file. `*size` is the whole
/// file's.
std::string Beginning(const std::string& path, size_t* size) {
  const int fd = open(path.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC);  // or it would wait for a pipe's writer
  if (fd < 0) return "";
  std::string text;
  struct stat file {};
  if (fstat(fd, &file) == 0 && S_ISREG(file.st_mode)) {
    *size = static_cast<size_t>(file.st_size);
    text.resize(std::min(*size, kMostRead));
    const ssize_t n = read(fd, text.data(), text.size());
    text.resize(static_cast<size_t>(std::max<ssize_t>(n, 0)));
  }
  close(fd);
  return text;
}

/// In the text of an error file.
std::string MessageIn(const std::string& text) {
  const auto json = nlohmann::json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!json.is_object() || !json.contains("message")) return text;
  const auto& message = json["message"];
  if (message.is_string()) return message.get<std::string>();
  // torchelastic's own: {"message": {"message": "...", "extraInfo": {"py_callstack": "...", "timestamp": "..."}}}
  if (message.is_object() && message.contains("message") && message["message"].is_string()) {
    std::string result = message["message"].get<std::string>();
    const auto info = message.find("extraInfo");
    if (info != message.end() && info->is_object() && info->contains("py_callstack") &&
        (*info)["py_callstack"].is_string()) {
      result += "\n" + (*info)["py_callstack"].get<std::string>();
    }
    return result;
  }
  return text;
}

}  // namespace

std::string HowItEnded(const FirstFailure& failure) {
  std::ostringstream text;
  text << "rank " << failure.rank << " (process " << failure.process << ") ";
  if (failure.signal != 0) {
    text << "was killed by signal " << failure.signal << " (" << strsignal(failure.signal) << ")";
  } else {
    text << "ended with code " << failure.code;
  }
  return text.str();
}

std::string Describe(const FirstFailure& failure) {
  char when[32] = "";
  std::tm local{};
  if (localtime_r(&failure.time, &local) != nullptr) std::strftime(when, sizeof(when), "%Y-%m-%d %H:%M:%S", &local);
  std::string text = "lockstep: first failure: " + HowItEnded(failure) + " on " + failure.host + ", local rank " +
                     std::to_string(failure.local_rank) + ", at " + when + "\n";
  if (!failure.error_message.empty()) {
    text += "  its error file says:\n" + Indented(failure.error_message);
  } else if (!failure.last_lines.empty()) {
    text += "  its last lines on standard error:\n" + Indented(failure.last_lines);
  }
  return text;
}

std::string ReadErrorFile(const std::string& path) {
  size_t size = 0;
  std::string message = MessageIn(Beginning(path, &size));
  // More than was read is no message that we know, but text.
  if (size > kMostRead || message.size() > kLongestMessage) {
    const size_t more = std::max(size > kMostRead ? size : 0, message.size()) - kLongestMessage;
    message = message.substr(0, kLongestMessage) + "\n… and " + std::to_string(more) + " bytes more";
  }
  return message;
}

}  // namespace lockstep
