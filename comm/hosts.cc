#include "lockstep/comm/hosts.h"

#include <absl/strings/str_cat.h>
#include <absl/strings/str_join.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstring>
#include <random>

#include "lockstep/base/status_macros.h"
#include "lockstep/comm/meeting.h"

namespace lockstep {
namespace {

/// A Unix socket, by a name without a file.
class Socket {
 public:
  Socket() : fd_(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0)) {}
  ~Socket() {
    if (fd_ >= 0) close(fd_);
  }
  Socket(const Socket&) = delete;
  Socket& operator=(const Socket&) = delete;

  bool Listen(const std::string& name, int backlog) {
    const Address address(name);
    return bind(fd_, address.get(), address.length) == 0 && listen(fd_, backlog) == 0;
  }
  /// Whether somebody listens there; one whose queue is full does too.
  bool CanReach(const std::string& name) {
    const Address address(name);
    return connect(fd_, address.get(), address.length) == 0 || errno == EAGAIN;
  }

 private:
  struct Address {
    explicit Address(const std::string& name) {
      value.sun_family = AF_UNIX;
      const size_t bytes = std::min(name.size(), sizeof(value.sun_path) - 1);
      std::memcpy(value.sun_path + 1, name.data(), bytes);
      length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + bytes);
    }
    const sockaddr* get() const { return reinterpret_cast<const sockaddr*>(&value); }
    sockaddr_un value{};
    socklen_t length;
  };
  const int fd_;
};

}  // namespace

int Hosts::count() const { return of.empty() ? 0 : *std::max_element(of.begin(), of.end()) + 1; }

std::vector<int> Hosts::ranks(int host) const {
  std::vector<int> ranks;
  for (size_t r = 0; r < of.size(); ++r) {
    if (of[r] == host) ranks.push_back(static_cast<int>(r));
  }
  return ranks;
}

std::string Hosts::Text() const {
  std::vector<std::string> texts;
  for (int host = 0; host < count(); ++host) texts.push_back(absl::StrJoin(ranks(host), ", "));
  return absl::StrJoin(texts, " | ");
}

absl::StatusOr<Hosts> FindHosts(const c10::intrusive_ptr<c10d::Store>& store, int rank, int world_size,
                                std::chrono::milliseconds timeout) {
  Meeting meeting(*store, "hosts", rank, world_size, Meeting::Clock::now() + timeout);
  std::random_device random;
  std::string name = absl::StrCat("lockstep-host-", absl::Hex(random()), absl::Hex(random()), "-", rank);
  Socket listener;
  if (!listener.Listen(name, world_size)) name.clear();  // then it is a host of its own
  LOCKSTEP_ASSIGN_OR_RETURN(const std::vector<std::string> names, meeting.Exchange("listening", name));
  int lowest = 0;
  while (lowest < rank && (name.empty() || names[lowest].empty() || !Socket().CanReach(names[lowest]))) ++lowest;
  // Listens until all have tried.
  LOCKSTEP_ASSIGN_OR_RETURN(const std::vector<std::string> found, meeting.Exchange("lowest", std::to_string(lowest)));
  Hosts hosts;
  int count = 0;
  for (int r = 0; r < world_size; ++r) {
    const int first = std::stoi(found[r]);
    hosts.of.push_back(first == r ? count++ : hosts.of[first]);
  }
  return hosts;
}

}  // namespace lockstep
