#include "lockstep/comm/environment.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <map>

namespace lockstep {
namespace {

absl::StatusOr<DistributedEnvironment> Read(const std::map<std::string, std::string>& variables) {
  for (const char* name : {"RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT",
                           "TORCHELASTIC_USE_AGENT_STORE"}) {
    unsetenv(name);
  }
  for (const auto& [name, value] : variables) setenv(name.c_str(), value.c_str(), 1);
  return ReadEnvironment();
}

void ExpectError(const std::map<std::string, std::string>& variables, const std::string& want) {
  const auto env = Read(variables);
  ASSERT_FALSE(env.ok()) << want;
  EXPECT_NE(env.status().message().find(want), std::string::npos) << env.status();
}

TEST(Environment, WithoutALauncherIsAWorldOfOne) {
  const auto env = Read({});
  ASSERT_TRUE(env.ok());
  EXPECT_FALSE(env->launched);
  EXPECT_EQ(env->world_size, 1);
}

TEST(Environment, ReadsWhatTorchrunSets) {
  const auto env = Read({{"RANK", "3"},
                         {"WORLD_SIZE", "4"},
                         {"LOCAL_RANK", "1"},
                         {"LOCAL_WORLD_SIZE", "2"},
                         {"MASTER_ADDR", "host"},
                         {"MASTER_PORT", "1206"},
                         {"TORCHELASTIC_USE_AGENT_STORE", "True"}});
  ASSERT_TRUE(env.ok()) << env.status();
  EXPECT_EQ(env->rank, 3);
  EXPECT_EQ(env->local_rank, 1);
  EXPECT_EQ(env->local_world_size, 2);
  EXPECT_EQ(env->master_port, 1206);
  EXPECT_TRUE(env->agent_store);
}

TEST(Environment, ByHandOnOneHostTheLocalRankIsTheRank) {
  const auto env = Read({{"RANK", "1"}, {"WORLD_SIZE", "2"}, {"MASTER_ADDR", "localhost"}, {"MASTER_PORT", "1"}});
  ASSERT_TRUE(env.ok()) << env.status();
  EXPECT_EQ(env->local_rank, 1);
  EXPECT_EQ(env->local_world_size, 2);
}

TEST(Environment, NamesGapsAndConflicts) {
  ExpectError({{"RANK", "0"}}, "WORLD_SIZE is not set");
  ExpectError({{"WORLD_SIZE", "2"}}, "RANK is not set");
  ExpectError({{"RANK", "2"}, {"WORLD_SIZE", "2"}}, "RANK=2 must be a number from 0 to 1");
  ExpectError({{"RANK", "x"}, {"WORLD_SIZE", "2"}}, "RANK=x");
  ExpectError({{"RANK", "0"}, {"WORLD_SIZE", "0"}}, "WORLD_SIZE=0");
  ExpectError({{"RANK", "0"}, {"WORLD_SIZE", "2"}, {"MASTER_ADDR", "10.0.0.1"}}, "LOCAL_RANK is not set");
  ExpectError({{"RANK", "0"}, {"WORLD_SIZE", "2"}, {"LOCAL_RANK", "2"}, {"LOCAL_WORLD_SIZE", "2"}}, "LOCAL_RANK=2");
  ExpectError({{"RANK", "0"}, {"WORLD_SIZE", "2"}, {"MASTER_ADDR", "localhost"}, {"MASTER_PORT", "99999"}},
              "MASTER_PORT=99999");
}

}  // namespace
}  // namespace lockstep
