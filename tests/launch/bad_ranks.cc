// Cases that go wrong on one rank, for distributed_test_test.py.

#include <gtest/gtest.h>
#include <unistd.h>

#include <csignal>
#include <cstdlib>
#include <string>

namespace {

int Rank() { return std::atoi(std::getenv("RANK")); }

TEST(BadRanks, None) {
  EXPECT_STREQ(std::getenv("WORLD_SIZE"), "2");
  EXPECT_NE(std::getenv("MASTER_PORT"), nullptr);
}
TEST(BadRanks, RankOneFails) { EXPECT_EQ(Rank(), 0); }
TEST(BadRanks, RankOneIsKilled) {
  if (Rank() == 1) raise(SIGKILL);
}
TEST(BadRanks, RankOneHangs) {
  while (Rank() == 1) pause();
}
TEST(BadRanks, LeavesAProcess) {
  if (Rank() == 0 && fork() == 0) {
    setsid();  // out of the rank's process group
    while (true) pause();
  }
}
TEST(BadRanks, SeesOnlyLoopback) {
  FILE* names = popen("ls /sys/class/net; cat /proc/net/route | wc -l", "r");
  char text[1000] = {};
  const size_t n = fread(text, 1, sizeof(text) - 1, names);
  pclose(names);
  std::printf("network of rank %d: %s\n", Rank(), std::string(text, n).c_str());
}

}  // namespace
