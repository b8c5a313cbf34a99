#include "lockstep/launch/spawn.h"

#include <gtest/gtest.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdlib>
#include <string>

namespace lockstep {
namespace {

int Spawn(const std::string& command, int ranks, int expendable_from) {
  SpawnOptions options;
  options.argv = {"sh", "-c", command};
  options.num_ranks = ranks;
  options.expendable_from = expendable_from;
  return SpawnRanks(options);
}

TEST(SpawnRanks, ExpendableRanksMayFailWhileTheOthersGoOn) {
  // Rank 0 would be ended with the others; it sees that they have gone first.
  const std::string folder = testing::TempDir() + "/expendable";
  ASSERT_EQ(system(("mkdir -p " + folder).c_str()), 0);
  const std::string command = "if [ $RANK = 0 ]; then until [ -e " + folder +
                              "/gone ]; do :; done; exit 0; fi; trap 'touch " + folder + "/gone' EXIT; exit 3";
  EXPECT_EQ(Spawn(command, 2, 1), 0);
  EXPECT_EQ(Spawn("test $RANK = 0 || kill -9 $$", 3, 1), 0);
}

TEST(SpawnRanks, TheOthersMayNot) {
  EXPECT_EQ(Spawn("exit $((4 - $RANK))", 1, 1), 4);
  EXPECT_EQ(Spawn("test $RANK = 0 || exit 3", 2, -1), 3);
}

TEST(SpawnRanks, ClosedStreamsAreNoOthers) {
  const int before = dup(STDERR_FILENO);
  close(STDERR_FILENO);
  EXPECT_EQ(Spawn("echo x >&2 && exit 3", 2, -1), 3);
  struct stat now {
  }, null{};
  EXPECT_EQ(fstat(STDERR_FILENO, &now), 0) << "ranks could write, and so can we";
  EXPECT_EQ(stat("/dev/null", &null), 0);
  EXPECT_EQ(now.st_rdev, null.st_rdev);
  dup2(before, STDERR_FILENO);
  close(before);
}

/// Of the pipe that stays open as long as the rank is to be traced.
constexpr char kTraced[] = "SPAWN_TEST_TRACED";

/// Is a rank: another process traces it and doesn't wait for it, so that its end is hidden from its parent.
TEST(SpawnRanks, DISABLED_IsTraced) {
  const int line = std::atoi(std::getenv(kTraced));
  prctl(PR_SET_PTRACER, PR_SET_PTRACER_ANY);
  int told[2];
  ASSERT_EQ(pipe(told), 0);
  const pid_t rank = getpid();
  if (fork() == 0) {
    setsid();
    const char good = ptrace(PTRACE_SEIZE, rank, nullptr, nullptr) == 0 ? 1 : 0;
    close(line + 1);
    char nothing = 0;
    if (write(told[1], &good, 1) == 1) (void)!read(line, &nothing, 1);
    _exit(0);
  }
  char good = 0;
  ASSERT_EQ(read(told[0], &good, 1), 1);
  if (good != 1) _exit(77);
  kill(getppid(), SIGTERM);
  while (true) pause();
}

TEST(SpawnRanks, OneThatDoesNotEndWhenItIsKilledIsLeftBehind) {
  int line[2];
  ASSERT_EQ(pipe(line), 0);
  ASSERT_EQ(line[1], line[0] + 1);
  setenv(kTraced, std::to_string(line[0]).c_str(), 1);
  SpawnOptions options;
  options.argv = {ThisProgram(), "--gtest_filter=SpawnRanks.DISABLED_IsTraced", "--gtest_also_run_disabled_tests"};
  options.rank_zero_variables = {"XML_OUTPUT_FILE", "GTEST_OUTPUT", "TEST_PREMATURE_EXIT_FILE"};
  options.stop_grace = std::chrono::milliseconds(0);
  options.leave_after = std::chrono::milliseconds(100);
  const int code = SpawnRanks(options);
  close(line[1]);
  if (code == 77) GTEST_SKIP() << "no process may be traced here";
  EXPECT_EQ(code, 128 + SIGTERM);
  EXPECT_GT(waitpid(-1, nullptr, 0), 0) << "it has ended, once its tracer has";
  close(line[0]);
}

}  // namespace
}  // namespace lockstep
