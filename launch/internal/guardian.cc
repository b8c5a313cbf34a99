#include "lockstep/launch/internal/guardian.h"

#include <signal.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

namespace lockstep {
namespace {

constexpr int kMostGroups = 4096;

/// It must not hold what others wait for to be closed.
void CloseAllBut(int fd) {
#ifdef SYS_close_range
  if (fd > 0) syscall(SYS_close_range, 0, fd - 1, 0);
  if (syscall(SYS_close_range, fd + 1, ~0u, 0) == 0) return;
#endif
  const int limit = static_cast<int>(std::min<long>(sysconf(_SC_OPEN_MAX), 65536));
  for (int other = 0; other < limit; ++other) {
    if (other != fd) close(other);
  }
}

/// The guardian's life. It takes no memory: the process that it was forked from may have had threads.
[[noreturn]] void Guard(int news) {
  sigset_t all;
  sigfillset(&all);
  sigprocmask(SIG_BLOCK, &all, nullptr);
  setsid();
  if (chdir("/") != 0) {  // it would keep a file system from being unmounted, no more
  }
  prctl(PR_SET_NAME, "rank_guardian");
  CloseAllBut(news);
  static pid_t groups[kMostGroups];
  pid_t* end = groups;
  while (true) {
    pid_t group = 0;
    const ssize_t n = read(news, &group, sizeof(group));
    if (n < 0 && errno == EINTR) continue;
    if (n != sizeof(group)) break;
    if (group < 0) {
      end = std::remove(groups, end, -group);
    } else if (end < groups + kMostGroups) {
      *end++ = group;
    }
  }
  for (const pid_t* group = groups; group < end; ++group) kill(-*group, SIGKILL);
  _exit(0);
}

}  // namespace

Guardian::Guardian() {
  int ends[2];
  if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) != 0) return;
  const pid_t between = fork();
  if (between == 0) {
    if (fork() == 0) Guard(ends[0]);
    _exit(0);
  }
  close(ends[0]);
  line_ = ends[1];
  while (between > 0 && waitpid(between, nullptr, 0) < 0 && errno == EINTR) {
  }
}

Guardian::~Guardian() {
  if (line_ < 0) return;
  shutdown(line_, SHUT_WR);
  char nothing = 0;
  while (read(line_, &nothing, 1) < 0 && errno == EINTR) {  // until it has gone
  }
  close(line_);
}

void Guardian::Tell(pid_t news) {
  while (line_ >= 0 && send(line_, &news, sizeof(news), MSG_NOSIGNAL) < 0 && errno == EINTR) {
  }
}

}  // namespace lockstep
