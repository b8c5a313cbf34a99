#pragma once

#include <chrono>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace lockstep {

/// A TCP connection on which launchers tell each other small things, a line of JSON each. Nothing here waits. Not
/// thread-safe.
class MessageSocket {
 public:
  using Time = std::chrono::steady_clock::time_point;

  /// Takes the connected socket.
  explicit MessageSocket(int fd);
  ~MessageSocket();
  MessageSocket(MessageSocket&& other) noexcept;
  MessageSocket& operator=(MessageSocket&& other) noexcept;

  /// To wait for; -1 once it is closed, since it would be ready for ever.
  int fd() const { return closed_ ? -1 : fd_; }

  void Send(const nlohmann::json& message);

  /// What has come since the last call, and sends what didn't fit the last time.
  std::vector<nlohmann::json> Receive();

  /// The other side has gone, or says what nobody understands.
  bool closed() const { return closed_; }

  /// Nothing has come for so long, while we looked: to be asked after each Receive. Where much time lies between two
  /// questions it was we who stood still, in a suspended machine for example, and most of it doesn't count.
  bool SilentFor(std::chrono::milliseconds limit, Time now = std::chrono::steady_clock::now());

 private:
  void Flush();

  int fd_ = -1;
  bool closed_ = false;
  std::string in_, out_;
  Time looked_;                                     // for something that comes, and asked how long nothing has
  std::chrono::steady_clock::duration silence_{0};  // until then
};

}  // namespace lockstep
