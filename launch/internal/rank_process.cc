#include "lockstep/launch/internal/rank_process.h"

#include <fcntl.h>
#include <sched.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>

namespace lockstep {
namespace {

std::vector<char*> Pointers(const std::vector<std::string>& texts) {
  std::vector<char*> pointers;
  for (const auto& text : texts) pointers.push_back(const_cast<char*>(text.c_str()));
  pointers.push_back(nullptr);
  return pointers;
}

/// For the kernel, with room for 1024 cores in each element.
std::vector<cpu_set_t> SetOf(const std::vector<int>& cores) {
  if (cores.empty()) return {};
  const int highest = *std::max_element(cores.begin(), cores.end());
  std::vector<cpu_set_t> set(static_cast<size_t>(highest / CPU_SETSIZE + 1));
  for (const int core : cores) CPU_SET_S(core, set.size() * sizeof(cpu_set_t), set.data());
  return set;
}

/// Of a file that is there and can't be found: it is a script, and what shall read it isn't there.
bool LacksItsInterpreter(const char* program, int error) {
  return error == ENOENT && std::strchr(program, '/') != nullptr && access(program, F_OK) == 0;
}

/// Says why the program is not run, and how it may be. Takes no memory.
void SayWhyNot(const char* program, int error) {
  const char* ending = std::strrchr(program, '.');
  const char *how = "", *named = "", *mark = "";
  if (LacksItsInterpreter(program, error)) {
    how = "; it is there, but not the interpreter that it names (its first line may end with a carriage return)";
  } else if (ending != nullptr && std::strcmp(ending, ".py") == 0) {
    how = "; programs are run as they are: python3 ";
    named = program;
  } else if (std::strchr(program, '/') == nullptr && access(program, F_OK) == 0) {
    how = "; is it ./";  // names without a folder are searched in PATH alone
    named = program;
    mark = "?";
  }
  dprintf(STDERR_FILENO, "lockstep: cannot run %s: %s%s%s%s\n", program, std::strerror(error), how, named, mark);
}

}  // namespace

std::string NoProcess(int error) {
  const char* const limit = error == EAGAIN   ? "; there is a limit of processes (ulimit -u, or the container's)"
                            : error == EMFILE ? "; there is a limit of open files (ulimit -n)"
                                              : "";
  return std::string(std::strerror(error)) + limit;
}

pid_t StartRank(const RankProcess& process) {
  // All memory is taken before the fork: the child of a process with threads may take none.
  const std::vector<char*> argv = Pointers(process.argv), environment = Pointers(process.environment);
  const std::vector<cpu_set_t> cores = SetOf(process.cores);
  const pid_t parent = getpid();
  const pid_t pid = fork();
  if (pid > 0) setpgid(pid, pid);  // here too, so that a signal sent now finds the group
  if (pid != 0) return pid;

  setpgid(0, 0);
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() != parent) _exit(1);
  if (!cores.empty()) sched_setaffinity(0, cores.size() * sizeof(cpu_set_t), cores.data());
  // A background process group must not read the terminal.
  if (const int null = open("/dev/null", O_RDONLY); null > STDIN_FILENO) {
    dup2(null, STDIN_FILENO);
    close(null);
  }
  if (process.out >= 0) dup2(process.out, STDOUT_FILENO);
  if (process.err >= 0) dup2(process.err, STDERR_FILENO);
  sigprocmask(SIG_SETMASK, &process.mask, nullptr);
  execvpe(argv[0], argv.data(), environment.data());
  const int error = errno;
  SayWhyNot(argv[0], error);
  _exit(error == ENOENT ? 127 : 126);
}

}  // namespace lockstep
