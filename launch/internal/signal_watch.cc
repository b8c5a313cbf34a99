#include "lockstep/launch/internal/signal_watch.h"

#include <sys/signalfd.h>
#include <unistd.h>

#include <ctime>

namespace lockstep {

SignalWatch::SignalWatch(const std::vector<int>& signals) {
  sigset_t watched;
  sigemptyset(&watched);
  sigaddset(&watched, SIGCHLD);
  for (const int signal : signals) {
    struct sigaction now {};
    if (sigaction(signal, nullptr, &now) == 0 && now.sa_handler != SIG_IGN) sigaddset(&watched, signal);
  }
  // Ignored, children would vanish before we ask for their codes.
  struct sigaction keep_children {};
  keep_children.sa_handler = SIG_DFL;
  sigaction(SIGCHLD, &keep_children, &child_before_);
  blocked_ = watched;
  sigaddset(&blocked_, SIGPIPE);
  sigprocmask(SIG_BLOCK, &blocked_, &before_);
  fd_ = signalfd(-1, &watched, SFD_CLOEXEC | SFD_NONBLOCK);
}

SignalWatch::~SignalWatch() {
  const timespec at_once{};
  while (sigtimedwait(&blocked_, nullptr, &at_once) > 0) {
  }  // what came when all was over must not end us
  close(fd_);
  sigaction(SIGCHLD, &child_before_, nullptr);
  sigprocmask(SIG_SETMASK, &before_, nullptr);
}

int SignalWatch::Next() {
  signalfd_siginfo info{};
  return read(fd_, &info, sizeof(info)) == sizeof(info) ? static_cast<int>(info.ssi_signo) : 0;
}

}  // namespace lockstep
