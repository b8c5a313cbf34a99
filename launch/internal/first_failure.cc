#include "lockstep/launch/internal/first_failure.h"

#include <cstring>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <sstream>

namespace lockstep {
namespace {

constexpr size_t kLongestMessage = 64 << 10;  // it is for people, and other hosts are told it

std::string Indented(const std::string& text) {
  std::istringstream lines(text);
  std::string result;
  for (std::string line; std::getline(lines, line);) result += "    " + line + "\n";
  return result;
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
  std::ifstream file(path, std::ios::binary);
  const std::string text((std::istreambuf_iterator<char>(file)), {});
  std::string message = MessageIn(text);
  if (message.size() > kLongestMessage) {
    const size_t more = message.size() - kLongestMessage;
    message = message.substr(0, kLongestMessage) + "\n… and " + std::to_string(more) + " bytes more";
  }
  return message;
}

}  // namespace lockstep
