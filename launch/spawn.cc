#include "lockstep/launch/spawn.h"

#include <csignal>
#include <fcntl.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>

#include "lockstep/base/cores.h"

namespace lockstep {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::chrono::milliseconds kSameWish(100);  // between two signals that are one

struct Child {
  pid_t pid = -1;  // -1 once it has ended
};

/// In the child: never returns.
[[noreturn]] void Exec(const SpawnOptions& options, int rank, int restarts, pid_t parent, const sigset_t& mask) {
  // A process group of its own, so that what the rank starts can be ended with it; and no rank outlives us.
  setpgid(0, 0);
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() != parent) _exit(1);
  const auto set = [](const char* name, const std::string& value) { setenv(name, value.c_str(), 1); };
  set("RANK", std::to_string(rank));
  set("WORLD_SIZE", std::to_string(options.num_ranks));
  set("LOCAL_RANK", std::to_string(rank));
  set("LOCAL_WORLD_SIZE", std::to_string(options.num_ranks));
  set("GROUP_RANK", "0");
  set("MASTER_ADDR", options.master_addr);
  set("MASTER_PORT", std::to_string(options.master_port));
  set("TORCHELASTIC_RESTART_COUNT", std::to_string(restarts));
  set("TORCHELASTIC_MAX_RESTARTS", std::to_string(options.max_restarts));
  set("TORCHELASTIC_RUN_ID", options.launch_id);
  unsetenv("TORCHELASTIC_USE_AGENT_STORE");  // rank 0 holds the store, whatever launched us
  const int threads = options.threads > 0 ? options.threads : std::max(1, AvailableCores() / options.num_ranks);
  setenv("OMP_NUM_THREADS", std::to_string(threads).c_str(), options.threads > 0 ? 1 : 0);
  if (rank != 0) {
    for (const auto& name : options.rank_zero_variables) unsetenv(name.c_str());
  }
  // A background process group must not read the terminal.
  if (const int null = open("/dev/null", O_RDONLY); null >= 0) {
    dup2(null, STDIN_FILENO);
    close(null);
  }
  sigprocmask(SIG_SETMASK, &mask, nullptr);
  std::vector<char*> argv;
  for (const auto& argument : options.argv) argv.push_back(const_cast<char*>(argument.c_str()));
  argv.push_back(nullptr);
  execvp(argv[0], argv.data());
  std::fprintf(stderr, "lockstep: cannot run %s: %s\n", argv[0], std::strerror(errno));
  _exit(errno == ENOENT ? 127 : 126);
}

/// To the whole process group of each rank that is running.
void SignalAll(const std::vector<Child>& children, int signal) {
  for (const auto& child : children) {
    if (child.pid > 0) kill(-child.pid, signal);
  }
}

struct Outcome {
  int code = 0;
  bool may_restart = false;
};

/// All ranks, once. The signals of `watched` are blocked.
Outcome RunRanks(const SpawnOptions& options, int restarts, Clock::time_point start, const sigset_t& watched,
                 const sigset_t& before) {
  const pid_t self = getpid();
  std::vector<Child> children(options.num_ranks);
  int result = 0;
  int running = 0;
  for (int rank = 0; rank < options.num_ranks; ++rank) {
    const pid_t pid = fork();
    if (pid == 0) Exec(options, rank, restarts, self, before);
    if (pid < 0) {
      std::fprintf(stderr, "lockstep: cannot start rank %d: %s\n", rank, std::strerror(errno));
      result = 1;
      break;
    }
    setpgid(pid, pid);  // here too, so that a signal sent now finds the group
    children[rank].pid = pid;
    ++running;
  }

  auto terminate_at = result == 0 ? Clock::time_point::max() : Clock::now();
  auto kill_at = Clock::time_point::max();
  int interrupted = 0;  // by this signal
  Clock::time_point interrupted_at;
  bool asked = false;                    // to stop, by one that ranks need not obey
  bool stopped = false, broken = false;  // some rank ended with stop_code; with another one that is not 0
  bool late = false;
  while (running > 0) {
    for (int rank = 0; rank < options.num_ranks; ++rank) {
      Child& child = children[rank];
      siginfo_t info{};
      if (child.pid < 0 || waitid(P_PID, child.pid, &info, WEXITED | WNOHANG | WNOWAIT) != 0 || info.si_pid == 0)
        continue;
      // Before its number is free for others: what it has left behind in its process group goes with it.
      const pid_t pid = child.pid;
      kill(-pid, SIGKILL);
      waitpid(pid, nullptr, 0);
      child.pid = -1;
      --running;
      const bool killed = info.si_code != CLD_EXITED;
      const int code = killed ? 128 + info.si_status : info.si_status;
      if (code == options.stop_code && !killed) {
        stopped = true;
        terminate_at = std::min(terminate_at, Clock::now() + options.stop_grace);
        continue;
      }
      if (code != 0 && interrupted == 0 && options.expendable_from >= 0 && rank >= options.expendable_from) {
        std::fprintf(stderr, "lockstep: rank %d (process %d) ended with code %d; the others go on\n", rank, pid, code);
        continue;
      }
      broken |= code != 0;
      if (code == 0 || interrupted != 0) continue;
      if (result != 0) continue;  // what follows the first failure is its consequence
      result = code;
      if (killed) {
        std::fprintf(stderr, "lockstep: rank %d (process %d) was killed by signal %d (%s); stopping the others\n", rank,
                     pid, info.si_status, strsignal(info.si_status));
      } else if (options.report_exit_codes) {
        std::fprintf(stderr, "lockstep: rank %d (process %d) ended with code %d; stopping the others\n", rank, pid,
                     code);
      }
      terminate_at = std::min(terminate_at, Clock::now() + options.grace);
    }
    if (running == 0) break;

    const auto now = Clock::now();
    if (options.time_limit.count() > 0 && now - start > options.time_limit && result == 0) {
      for (int rank = 0; rank < options.num_ranks; ++rank) {
        if (children[rank].pid > 0) {
          std::fprintf(stderr, "lockstep: rank %d (process %d) did not end in time\n", rank, children[rank].pid);
        }
      }
      result = 124;
      late = true;
      terminate_at = now;
    }
    if (now >= terminate_at) {
      SignalAll(children, SIGTERM);
      terminate_at = Clock::time_point::max();
      kill_at = std::min(kill_at, now + options.kill_after);
    }
    if (now >= kill_at) SignalAll(children, SIGKILL);

    const timespec tick{0, 50'000'000};
    const int signal = sigtimedwait(&watched, nullptr, &tick);
    if (signal == SIGUSR1) {
      SignalAll(children, signal);
      asked = true;
    }
    if (signal == SIGINT || signal == SIGTERM || signal == SIGHUP) {
      // Some send one wish twice, as timeout does: to us, and to our process group.
      if (interrupted != 0 && Clock::now() - interrupted_at < kSameWish) continue;
      SignalAll(children, interrupted != 0 ? SIGKILL : signal);
      interrupted = signal;
      interrupted_at = Clock::now();
      kill_at = std::min(kill_at, interrupted_at + options.stop_grace);
    }
  }
  if (interrupted != 0) return {broken ? 128 + interrupted : stopped ? options.stop_code : 0, false};
  const bool cannot_run = result == 126 || result == 127;  // nor could it the next time
  return {result == 0 && stopped ? options.stop_code : result, result != 0 && !late && !asked && !cannot_run};
}

}  // namespace

std::string ThisProgram() {
  char path[4096];
  const ssize_t n = readlink("/proc/self/exe", path, sizeof(path));
  return n > 0 ? std::string(path, n) : "";
}

int SpawnRanks(const SpawnOptions& wanted) {
  SpawnOptions options = wanted;
  if (options.launch_id.empty()) {
    const auto now = std::chrono::system_clock::now().time_since_epoch().count();
    options.launch_id = "lockstep-" + std::to_string(getpid()) + "-" + std::to_string(now);
  }
  sigset_t watched, before;
  sigemptyset(&watched);
  sigaddset(&watched, SIGCHLD);
  for (int signal : {SIGINT, SIGTERM, SIGHUP, SIGUSR1}) {
    struct sigaction now {};
    if (sigaction(signal, nullptr, &now) == 0 && now.sa_handler != SIG_IGN) sigaddset(&watched, signal);  // nohup
  }
  struct sigaction keep_children {
  }, sigchld_before;  // ignored, children would vanish before we ask for their codes
  keep_children.sa_handler = SIG_DFL;
  sigaction(SIGCHLD, &keep_children, &sigchld_before);
  sigprocmask(SIG_BLOCK, &watched, &before);
  const auto start = Clock::now();
  Outcome outcome;
  for (int restarts = 0;; ++restarts) {
    outcome = RunRanks(options, restarts, start, watched, before);
    if (!outcome.may_restart || restarts >= options.max_restarts) break;
    std::fprintf(stderr, "lockstep: starting all ranks again (restart %d of %d)\n", restarts + 1, options.max_restarts);
  }
  const timespec at_once{};
  while (sigtimedwait(&watched, nullptr, &at_once) > 0) {
  }  // what came when all was over must not end us
  sigaction(SIGCHLD, &sigchld_before, nullptr);
  sigprocmask(SIG_SETMASK, &before, nullptr);
  return outcome.code;
}

}  // namespace lockstep
