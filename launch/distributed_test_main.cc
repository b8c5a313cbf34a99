// main() of a lockstep_distributed_test: without RANK it starts the ranks and judges them, with RANK it is one.

#include <gtest/gtest.h>
#include <net/if.h>
#include <sched.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <string>

#include "lockstep/launch/port.h"
#include "lockstep/launch/spawn.h"

namespace {

constexpr char kFlag[] = "--lockstep_world_size=";

/// A network of our own with nothing but the loopback interface, if the system lets us.
void LeaveNetwork() {
  if (unshare(CLONE_NEWNET) != 0) return;
  const int fd = socket(AF_INET, SOCK_DGRAM, 0);
  ifreq request{};
  std::strcpy(request.ifr_name, "lo");
  if (ioctl(fd, SIOCGIFFLAGS, &request) == 0) {
    request.ifr_flags |= IFF_UP | IFF_RUNNING;
    ioctl(fd, SIOCSIFFLAGS, &request);
  }
  close(fd);
}

/// Processes that the ranks have started and left running; they have become our children. Ends and counts them.
int EndLeftovers() {
  int count = 0;
  int status = 0;
  while (true) {
    const pid_t pid = waitpid(-1, &status, WNOHANG);
    if (pid < 0) return count;
    if (pid > 0) {
      // Killed by SpawnRanks or by us; what ended by itself in time is no leftover.
      if (WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL) ++count;
      continue;
    }
    std::ifstream children("/proc/thread-self/children");
    for (pid_t child; children >> child;) kill(child, SIGKILL);
    waitid(P_ALL, 0, nullptr, WEXITED | WNOWAIT);
  }
}

int RunRanks(int world_size, int argc, char** argv) {
  LeaveNetwork();
  prctl(PR_SET_CHILD_SUBREAPER, 1);
  const auto port = lockstep::ReservedPort::Reserve(0);
  if (!port.ok()) {
    std::fprintf(stderr, "%s\n", std::string(port.status().message()).c_str());
    return 1;
  }
  lockstep::SpawnOptions options;
  options.argv.push_back(lockstep::ThisProgram());
  for (int i = 1; i < argc; ++i) options.argv.push_back(argv[i]);
  options.num_ranks = world_size;
  options.master_port = port->port();
  options.rank_zero_variables = {"XML_OUTPUT_FILE", "GTEST_OUTPUT", "TEST_PREMATURE_EXIT_FILE"};
  const char* timeout = std::getenv("TEST_TIMEOUT");
  const int seconds = timeout == nullptr ? 0 : std::atoi(timeout);
  if (seconds > 20) options.time_limit = std::chrono::seconds(seconds - 10);
  const int result = lockstep::SpawnRanks(options);
  const int leftovers = EndLeftovers();
  if (leftovers > 0) std::fprintf(stderr, "lockstep: the ranks left %d processes behind\n", leftovers);
  return result != 0 ? result : leftovers > 0 ? 1 : 0;
}

}  // namespace

int main(int argc, char** argv) {
  int world_size = 1;
  for (int i = 1; i < argc; ++i) {
    if (std::strncmp(argv[i], kFlag, sizeof(kFlag) - 1) == 0) world_size = std::atoi(argv[i] + sizeof(kFlag) - 1);
  }
  if (std::getenv("RANK") == nullptr) return RunRanks(world_size, argc, argv);
  testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
