#include "lockstep/launch/spawn.h"

#include <gtest/gtest.h>

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

}  // namespace
}  // namespace lockstep
