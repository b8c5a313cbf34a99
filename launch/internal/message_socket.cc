#include "lockstep/launch/internal/message_socket.h"

#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <utility>

namespace lockstep {
namespace {

constexpr size_t kLongest = 1 << 20;

}  // namespace

MessageSocket::MessageSocket(int fd) : fd_(fd), looked_(std::chrono::steady_clock::now()) {
  const int on = 1;
  setsockopt(fd_, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
  fcntl(fd_, F_SETFL, fcntl(fd_, F_GETFL) | O_NONBLOCK);
  fcntl(fd_, F_SETFD, FD_CLOEXEC);
}

MessageSocket::~MessageSocket() {
  if (fd_ >= 0) close(fd_);
}

MessageSocket::MessageSocket(MessageSocket&& other) noexcept { *this = std::move(other); }

MessageSocket& MessageSocket::operator=(MessageSocket&& other) noexcept {
  std::swap(fd_, other.fd_);
  std::swap(closed_, other.closed_);
  std::swap(in_, other.in_);
  std::swap(out_, other.out_);
  std::swap(looked_, other.looked_);
  std::swap(silence_, other.silence_);
  return *this;
}

void MessageSocket::Send(const nlohmann::json& message) {
  // Names and last lines of ranks may be no UTF-8.
  out_ += message.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
  Flush();
}

void MessageSocket::Flush() {
  while (!out_.empty() && !closed_) {
    const ssize_t n = send(fd_, out_.data(), out_.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
    if (n > 0) {
      out_.erase(0, static_cast<size_t>(n));
    } else if (errno == EAGAIN) {
      return;
    } else if (errno != EINTR) {
      closed_ = true;
    }
  }
}

std::vector<nlohmann::json> MessageSocket::Receive() {
  Flush();
  char buffer[16384];
  bool ended = false;
  while (!closed_ && !ended) {
    const ssize_t n = recv(fd_, buffer, sizeof(buffer), MSG_DONTWAIT);
    if (n > 0) {
      in_.append(buffer, static_cast<size_t>(n));
      looked_ = std::chrono::steady_clock::now();
      silence_ = silence_.zero();
    } else if (n < 0 && errno == EAGAIN) {
      break;
    } else if (n == 0 || errno != EINTR) {
      ended = true;
    }
  }
  std::vector<nlohmann::json> messages;
  for (size_t end; (end = in_.find('\n')) != std::string::npos;) {
    auto message = nlohmann::json::parse(in_.substr(0, end), nullptr, /*allow_exceptions=*/false);
    in_.erase(0, end + 1);
    if (message.is_object() && message.contains("kind") && message["kind"].is_string()) {
      messages.push_back(std::move(message));
    } else {
      ended = true;  // it speaks another language
      break;
    }
  }
  closed_ |= ended || in_.size() > kLongest;
  return messages;
}

bool MessageSocket::SilentFor(std::chrono::milliseconds limit, Time now) {
  silence_ += std::min<std::chrono::steady_clock::duration>(now - looked_, limit / 4);
  looked_ = now;
  return silence_ > limit;
}

}  // namespace lockstep
