#include "lockstep/launch/internal/launcher_meeting.h"

#include <absl/status/status.h>
#include <absl/strings/str_cat.h>
#include <poll.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <map>
#include <system_error>
#include <utility>
#include <vector>

#include "lockstep/base/status_macros.h"
#include "lockstep/launch/internal/connections.h"
#include "lockstep/launch/internal/meeting_state.h"
#include "lockstep/launch/internal/message_socket.h"

namespace lockstep {
namespace {

using Clock = std::chrono::steady_clock;

/// The meeting's thread: sockets on one side, the state on the other.
class Room {
 public:
  Room(const MeetingOptions& options, const std::string& launch_id, int max_restarts, int listener, int wake)
      : options_(options),
        listener_(listener),
        wake_(wake),
        state_(options, launch_id, max_restarts, Clock::now(), [this](int member, const nlohmann::json& message) {
          const auto found = sockets_.find(member);
          if (found != sockets_.end()) found->second.Send(message);
        }) {}
  ~Room() { close(listener_); }

  void Run() {
    auto leave_at = Clock::time_point::max();
    while (true) {
      Wait(std::min(leave_at, state_.Next()));
      Accept();
      Listen();
      Beat();
      state_.Tick(Clock::now());
      uint64_t count = 0;
      if (read(wake_, &count, sizeof(count)) > 0) {
        closing_ = true;
        state_.Close("the launcher that the others meet at, " + options_.host + ", has ended");
      }
      if (!closing_ || !state_.over()) continue;
      // The others have been told; they go when they have read it.
      leave_at = std::min(leave_at, Clock::now() + options_.silence_limit);
      if (sockets_.empty() || Clock::now() >= leave_at) return;
    }
  }

 private:
  void Wait(Clock::time_point until) {
    std::vector<pollfd> waited = {{wake_, POLLIN, 0}, {listener_, POLLIN, 0}};
    until = std::min(until, beat_at_);
    for (const auto& [id, socket] : sockets_) {
      waited.push_back({socket.fd(), POLLIN, 0});
      if (socket.closed()) until = Clock::now();  // noticed while something was sent
    }
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(until - Clock::now()).count() + 1;
    poll(waited.data(), waited.size(), static_cast<int>(std::clamp<int64_t>(left, 0, 1000)));
  }

  void Accept() {
    for (int fd; (fd = accept4(listener_, nullptr, nullptr, SOCK_CLOEXEC)) >= 0;) {
      MessageSocket& socket = sockets_.emplace(next_id_++, MessageSocket(fd)).first->second;
      socket.Send({{"kind", "keep_alive"},
                   {"interval", options_.beat_interval.count()},
                   {"limit", options_.silence_limit.count()}});
    }
  }

  void Listen() {
    std::vector<std::pair<int, std::string>> gone;
    for (auto& [id, socket] : sockets_) {
      for (const auto& message : socket.Receive()) {
        try {
          state_.Heard(id, message, Clock::now());
        } catch (const nlohmann::json::exception&) {
          gone.emplace_back(id, "it speaks another language");  // a value of another type than ours
        }
      }
      if (socket.closed()) {
        gone.emplace_back(id, "its launcher has ended");
      } else if (socket.SilentFor(options_.silence_limit)) {
        gone.emplace_back(id,
                          absl::StrCat("nothing was heard of it for ", options_.silence_limit.count() / 1000.0, " s"));
      }
    }
    for (const auto& [id, how] : gone) {
      if (sockets_.erase(id) > 0) state_.Gone(id, how, Clock::now());
    }
  }

  void Beat() {
    if (Clock::now() < beat_at_) return;
    for (auto& [id, socket] : sockets_) socket.Send({{"kind", "beat"}});
    beat_at_ = Clock::now() + options_.beat_interval;
  }

  const MeetingOptions options_;
  const int listener_, wake_;
  std::map<int, MessageSocket> sockets_;
  int next_id_ = 0;
  Clock::time_point beat_at_ = Clock::now();
  bool closing_ = false;
  MeetingState state_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<LauncherMeeting>> LauncherMeeting::Open(const MeetingOptions& options,
                                                                       const std::string& launch_id, int max_restarts,
                                                                       bool* in_use) {
  LOCKSTEP_ASSIGN_OR_RETURN(const int listener, ListenOn(options.port, in_use));
  const int wake = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  if (wake < 0) {
    const int error = errno;
    close(listener);
    return absl::UnavailableError(absl::StrCat("no eventfd can be had for the hosts' meeting: ", std::strerror(error)));
  }
  std::unique_ptr<LauncherMeeting> meeting(new LauncherMeeting(wake));
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);  // signals are for the main thread
  try {
    meeting->thread_ = std::thread([=] { Room(options, launch_id, max_restarts, listener, wake).Run(); });
  } catch (const std::system_error&) {  // by joinable()
  }
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  if (!meeting->thread_.joinable()) {
    close(listener);
    return absl::ResourceExhaustedError("no thread can be had for the hosts' meeting");
  }
  return meeting;
}

LauncherMeeting::~LauncherMeeting() {
  const uint64_t one = 1;
  while (write(wake_, &one, sizeof(one)) < 0 && errno == EINTR) {
  }
  if (thread_.joinable()) thread_.join();
  close(wake_);
}

}  // namespace lockstep
