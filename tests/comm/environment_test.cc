#include "lockstep/comm/environment.h"

#include <gtest/gtest.h>

#include <chrono>
#include <cstdlib>
#include <map>
#include <string>
#include <vector>

namespace lockstep {
namespace {

absl::StatusOr<DistributedEnvironment> Read(const std::map<std::string, std::string>& variables) {
  for (const char* name : {"RANK",
                           "WORLD_SIZE",
                           "LOCAL_RANK",
                           "LOCAL_WORLD_SIZE",
                           "MASTER_ADDR",
                           "MASTER_PORT",
                           "GROUP_WORLD_SIZE",
                           "TORCHELASTIC_USE_AGENT_STORE",
                           "TORCHELASTIC_RUN_ID",
                           "TORCHELASTIC_RESTART_COUNT",
                           "LOCKSTEP_RESTART_COUNT",
                           "OMPI_COMM_WORLD_RANK",
                           "OMPI_COMM_WORLD_SIZE",
                           "OMPI_COMM_WORLD_LOCAL_RANK",
                           "OMPI_COMM_WORLD_LOCAL_SIZE",
                           "PMIX_NAMESPACE",
                           "PMI_RANK",
                           "PMI_SIZE",
                           "MPI_LOCALRANKID",
                           "MPI_LOCALNRANKS",
                           "SLURM_PROCID",
                           "SLURM_NTASKS",
                           "SLURM_STEP_NUM_TASKS",
                           "SLURM_LOCALID",
                           "SLURM_NODEID",
                           "SLURM_STEP_NODELIST",
                           "SLURM_JOB_NODELIST",
                           "SLURM_STEP_TASKS_PER_NODE",
                           "SLURM_TASKS_PER_NODE",
                           "SLURM_JOB_ID",
                           "SLURM_STEP_ID",
                           "PET_NNODES",
                           "PET_NPROC_PER_NODE",
                           "KUBERNETES_SERVICE_HOST",
                           "HOSTNAME"}) {
    unsetenv(name);
  }
  for (const auto& [name, value] : variables) setenv(name.c_str(), value.c_str(), 1);
  return ReadEnvironment();
}

using Variables = std::map<std::string, std::string>;

/// What mpirun gives a rank.
Variables OpenMpi(int rank, int size, int local_rank, int local_size) {
  return {{"OMPI_COMM_WORLD_RANK", std::to_string(rank)},
          {"OMPI_COMM_WORLD_SIZE", std::to_string(size)},
          {"OMPI_COMM_WORLD_LOCAL_RANK", std::to_string(local_rank)},
          {"OMPI_COMM_WORLD_LOCAL_SIZE", std::to_string(local_size)},
          {"PMIX_NAMESPACE", "1234567"}};
}

/// What srun gives rank 3 of 2 + 2 + 1 tasks.
Variables Slurm() {
  return {{"SLURM_PROCID", "3"},
          {"SLURM_NTASKS", "5"},
          {"SLURM_LOCALID", "1"},
          {"SLURM_NODEID", "1"},
          {"SLURM_JOB_ID", "77"},
          {"SLURM_STEP_ID", "2"},
          {"SLURM_JOB_NODELIST", "node[009-010],other"},
          {"SLURM_TASKS_PER_NODE", "2(x2),1"}};
}

Variables With(Variables variables, const Variables& more) {
  for (const auto& [name, value] : more) variables[name] = value;
  return variables;
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

TEST(Environment, ARestartIsAnyStartOfTheSameLaunchButItsFirst) {
  Variables variables = {{"RANK", "0"},           {"WORLD_SIZE", "2"},     {"LOCAL_RANK", "0"},
                         {"MASTER_ADDR", "host"}, {"MASTER_PORT", "1206"}, {"TORCHELASTIC_RESTART_COUNT", "2"}};
  EXPECT_EQ(Read(variables)->restarts, 2);
  variables["LOCKSTEP_RESTART_COUNT"] = "3";
  EXPECT_EQ(Read(variables)->restarts, 3);
  variables["TORCHELASTIC_USE_AGENT_STORE"] = "True";
  EXPECT_EQ(Read(variables)->restarts, 2) << "of torchrun inside lockstep_run";
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
  ExpectError({{"RANK", "0"}, {"WORLD_SIZE", "2"}}, "MASTER_ADDR is not set");
  ExpectError({{"RANK", "0"}, {"WORLD_SIZE", "2"}, {"LOCAL_RANK", "2"}, {"LOCAL_WORLD_SIZE", "2"}}, "LOCAL_RANK=2");
  ExpectError({{"RANK", "0"}, {"WORLD_SIZE", "2"}, {"MASTER_ADDR", "localhost"}, {"MASTER_PORT", "99999"}},
              "MASTER_PORT=99999");
  ExpectError({{"RANK", "0"}, {"WORLD_SIZE", "2"}, {"MASTER_ADDR", "localhost"}, {"MASTER_PORT", "0"}},
              "MASTER_PORT=0");
}

TEST(OpenMpi, RanksOfOneHostAgreeOnAPort) {
  const auto first = Read(OpenMpi(0, 2, 0, 2)), second = Read(OpenMpi(1, 2, 1, 2));
  ASSERT_TRUE(first.ok() && second.ok()) << first.status() << second.status();
  EXPECT_TRUE(second->launched);
  EXPECT_EQ(second->rank, 1);
  EXPECT_EQ(second->world_size, 2);
  EXPECT_EQ(second->local_rank, 1);
  EXPECT_EQ(second->local_world_size, 2);
  EXPECT_EQ(second->master_addr, "localhost");
  EXPECT_EQ(first->master_port, second->master_port);
  EXPECT_GE(first->master_port, 20000);
  EXPECT_LT(first->master_port, 32000);
  const auto other = Read(With(OpenMpi(0, 2, 0, 2), {{"PMIX_NAMESPACE", "1234568"}}));
  EXPECT_NE(other->master_port, first->master_port);
  EXPECT_NE(other->launch_id, first->launch_id);
  EXPECT_EQ(Read(With(OpenMpi(0, 2, 0, 2), {{"MASTER_PORT", "1206"}}))->master_port, 1206);
}

TEST(OpenMpi, SeveralHostsMustBeToldWhereToMeet) {
  ExpectError(OpenMpi(2, 4, 0, 2), "-x MASTER_ADDR=HOST -x MASTER_PORT=PORT");
  ExpectError(With(OpenMpi(2, 4, 0, 2), {{"MASTER_ADDR", "host"}}), "MASTER_PORT is not set");
  const auto env = Read(With(OpenMpi(2, 4, 0, 2), {{"MASTER_ADDR", "host"}, {"MASTER_PORT", "1206"}}));
  ASSERT_TRUE(env.ok()) << env.status();
  EXPECT_EQ(env->rank, 2);
  EXPECT_EQ(env->local_rank, 0);
  EXPECT_EQ(env->master_addr, "host");
}

TEST(OpenMpi, GapsAndConflictsAreNamed) {
  auto gap = OpenMpi(1, 2, 1, 2);
  gap.erase("OMPI_COMM_WORLD_LOCAL_RANK");
  ExpectError(gap, "OMPI_COMM_WORLD_LOCAL_RANK is not set");
  ExpectError(With(OpenMpi(0, 2, 0, 2), {{"RANK", "1"}, {"WORLD_SIZE", "2"}}), "RANK=1 but OMPI_COMM_WORLD_RANK=0");
  ExpectError(With(OpenMpi(0, 2, 0, 2), {{"RANK", "0"}, {"WORLD_SIZE", "4"}}),
              "WORLD_SIZE=4 but OMPI_COMM_WORLD_SIZE=2");
  // A launcher in each of mpirun's processes, which know nothing of each other.
  ExpectError(With(OpenMpi(1, 2, 1, 2), {{"RANK", "0"}, {"WORLD_SIZE", "1"}, {"GROUP_WORLD_SIZE", "1"}}),
              "mpirun has started 2 launchers");
}

TEST(OpenMpi, VariablesThatAgreeAreNoConflict) {
  const auto by_hand = Read(With(OpenMpi(2, 4, 0, 2), {{"RANK", "2"}, {"WORLD_SIZE", "4"}, {"MASTER_ADDR", "host"}}));
  ASSERT_TRUE(by_hand.ok()) << by_hand.status();
  EXPECT_EQ(by_hand->local_rank, 0);
  EXPECT_EQ(by_hand->local_world_size, 2);
  const auto launchers = Read(With(OpenMpi(1, 2, 0, 1), {{"RANK", "3"},
                                                         {"WORLD_SIZE", "4"},
                                                         {"LOCAL_RANK", "1"},
                                                         {"LOCAL_WORLD_SIZE", "2"},
                                                         {"GROUP_WORLD_SIZE", "2"},
                                                         {"MASTER_ADDR", "host"}}));
  ASSERT_TRUE(launchers.ok()) << launchers.status();
  EXPECT_EQ(launchers->rank, 3);
  EXPECT_EQ(launchers->local_rank, 1);
}

TEST(Hydra, RanksAreRead) {
  const auto env = Read({{"PMI_RANK", "1"}, {"PMI_SIZE", "2"}, {"MPI_LOCALRANKID", "1"}, {"MPI_LOCALNRANKS", "2"}});
  ASSERT_TRUE(env.ok()) << env.status();
  EXPECT_EQ(env->rank, 1);
  EXPECT_EQ(env->local_world_size, 2);
  EXPECT_EQ(env->master_addr, "localhost");
  ExpectError({{"PMI_RANK", "1"}, {"PMI_SIZE", "4"}, {"MPI_LOCALRANKID", "1"}, {"MPI_LOCALNRANKS", "2"}},
              "-genv MASTER_ADDR HOST");
  ExpectError({{"PMI_RANK", "1"}, {"PMI_SIZE", "2"}}, "MPI_LOCALNRANKS is not set");
}

TEST(Environment, BlanksAroundValuesAreNone) {
  const auto env = Read({{"RANK", "1\n"},
                         {"WORLD_SIZE", " 2"},
                         {"LOCAL_RANK", " "},
                         {"MASTER_ADDR", " localhost\n"},
                         {"MASTER_PORT", "1206 "},
                         {"TORCHELASTIC_USE_AGENT_STORE", "True\r"}});
  ASSERT_TRUE(env.ok()) << env.status();
  EXPECT_EQ(env->master_addr, "localhost");
  EXPECT_EQ(env->local_rank, 1);
  EXPECT_TRUE(env->agent_store);
  EXPECT_FALSE(Read({{"MASTER_ADDR", "localhost"}, {"RANK", " "}})->launched);
}

TEST(OuterLaunchers, IncompleteVariablesDontMatterBesideRankAndWorldSize) {
  const Variables ours = {{"RANK", "1"},           {"WORLD_SIZE", "4"},
                          {"LOCAL_RANK", "1"},     {"LOCAL_WORLD_SIZE", "2"},
                          {"MASTER_ADDR", "host"}, {"MASTER_PORT", "1206"}};
  const Variables pals = {{"PMI_RANK", "1"}, {"PMI_SIZE", "4"}}, mpirun = {{"OMPI_COMM_WORLD_SIZE", "8"}},
                  srun = {{"SLURM_PROCID", "0"}, {"SLURM_STEP_ID", "0"}, {"SLURM_NTASKS", "8"}};
  for (const Variables& outer : {pals, mpirun, srun}) {
    EXPECT_FALSE(Read(outer).ok());
    const auto env = Read(With(ours, outer));
    ASSERT_TRUE(env.ok()) << env.status();
    EXPECT_EQ(env->rank, 1);
    EXPECT_EQ(env->world_size, 4);
    EXPECT_EQ(env->local_rank, 1);
    EXPECT_EQ(env->master_addr, "host");
  }
}

TEST(Slurm, TheFirstHostIsTheMaster) {
  const auto env = Read(Slurm());
  ASSERT_TRUE(env.ok()) << env.status();
  EXPECT_EQ(env->rank, 3);
  EXPECT_EQ(env->world_size, 5);
  EXPECT_EQ(env->local_rank, 1);
  EXPECT_EQ(env->local_world_size, 2);
  EXPECT_EQ(env->master_addr, "node009");
  EXPECT_EQ(env->launch_id, "slurm-77.2");
  EXPECT_NE(Read(With(Slurm(), {{"SLURM_STEP_ID", "3"}}))->master_port, env->master_port);
  EXPECT_NE(Read(With(Slurm(), {{"SLURM_JOB_ID", "78"}}))->master_port, env->master_port);
  const auto given = Read(With(Slurm(), {{"MASTER_ADDR", "10.0.0.9"}, {"MASTER_PORT", "1206"}}));
  EXPECT_EQ(given->master_addr, "10.0.0.9");
  EXPECT_EQ(given->master_port, 1206);
}

TEST(Slurm, NumbersOfJobsAreUnsigned) {
  EXPECT_EQ(Read(With(Slurm(), {{"SLURM_JOB_ID", "4227858433"}}))->launch_id, "slurm-4227858433.2")
      << "of a federation";
  ExpectError(With(Slurm(), {{"SLURM_JOB_ID", ""}}), "SLURM_JOB_ID= is no number");
}

TEST(Slurm, RankZeroMayBeElsewhereIfTheMasterIsGiven) {
  const Variables elsewhere = {{"SLURM_PROCID", "0"}, {"SLURM_LOCALID", "0"}, {"SLURM_NODEID", "2"}};
  ExpectError(With(Slurm(), elsewhere),
              "rank 0 on host number 2 (SLURM_NODEID), and the others look for it on node009, the first");
  EXPECT_TRUE(Read(With(With(Slurm(), elsewhere), {{"MASTER_ADDR", "other"}})).ok());
}

TEST(Slurm, AStepsVariablesCountMoreThanItsJobs) {
  const auto env = Read(With(Slurm(), {{"SLURM_STEP_NUM_TASKS", "4"},
                                       {"SLURM_STEP_NODELIST", "node[010-011]"},
                                       {"SLURM_STEP_TASKS_PER_NODE", "2(x2)"}}));
  ASSERT_TRUE(env.ok()) << env.status();
  EXPECT_EQ(env->world_size, 4);
  EXPECT_EQ(env->master_addr, "node010");
}

TEST(Slurm, ABatchScriptOrAShellIsNoRank) {
  auto batch = Slurm();
  batch.erase("SLURM_STEP_ID");
  EXPECT_FALSE(Read(batch)->launched);
  EXPECT_FALSE(Read(With(Slurm(), {{"SLURM_STEP_ID", "4294967290"}}))->launched) << "salloc's shell";
  EXPECT_FALSE(Read(With(Slurm(), {{"SLURM_STEP_NUM_TASKS", "1"}, {"SLURM_PROCID", "0"}}))->launched);
}

TEST(Slurm, GapsAndConflictsAreNamed) {
  ExpectError(With(Slurm(), {{"SLURM_JOB_NODELIST", "node[009-010"}}), "host list node[009-010: a ']' is missing");
  ExpectError(With(Slurm(), {{"SLURM_TASKS_PER_NODE", "2(x"}}), "tasks per host 2(x");
  ExpectError(With(Slurm(), {{"SLURM_NODEID", "3"}}), "SLURM_NODEID=3");
  ExpectError(With(Slurm(), {{"RANK", "0"}, {"WORLD_SIZE", "5"}}), "RANK=0 but SLURM_PROCID=3");
  auto gap = Slurm();
  gap.erase("SLURM_LOCALID");
  ExpectError(gap, "SLURM_LOCALID is not set");
  // A launcher per host is the ordinary way.
  EXPECT_TRUE(
      Read(With(Slurm(), {{"RANK", "0"}, {"WORLD_SIZE", "2"}, {"LOCAL_RANK", "0"}, {"GROUP_WORLD_SIZE", "1"}})).ok());
}

TEST(Kubernetes, APodIsAHost) {
  const Variables pod = {{"RANK", "2"},
                         {"WORLD_SIZE", "4"},
                         {"MASTER_ADDR", "job-master-0"},
                         {"MASTER_PORT", "23456"},
                         {"KUBERNETES_SERVICE_HOST", "10.96.0.1"}};
  for (const Variables& variables : {pod, With(pod, {{"KUBERNETES_SERVICE_HOST", ""}, {"PET_NNODES", "4"}})}) {
    const auto env = Read(variables);
    ASSERT_TRUE(env.ok()) << env.status();
    EXPECT_EQ(env->rank, 2);
    EXPECT_EQ(env->local_rank, 0);
    EXPECT_EQ(env->local_world_size, 1);
  }
  const auto master = Read(With(pod, {{"RANK", "0"}, {"MASTER_ADDR", "localhost"}, {"HOSTNAME", "job-master-0"}}));
  EXPECT_EQ(master->local_world_size, 1);
  // By hand in a pod.
  EXPECT_EQ(Read(With(pod, {{"MASTER_ADDR", "localhost"}, {"HOSTNAME", "box"}}))->local_rank, 2);
  ExpectError(With(pod, {{"PET_NNODES", "4"}, {"PET_NPROC_PER_NODE", "2"}}), "start the program by lockstep_run");
}

TEST(HostName, ThatMeansNothingIsAnErrorAtTheEndOfTheTime) {
  EXPECT_TRUE(CheckHostName("localhost").ok());
  EXPECT_TRUE(CheckHostName("127.0.0.1").ok());
  const auto status = CheckHostName("no.such.host.invalid", std::chrono::milliseconds(1));
  EXPECT_NE(status.message().find("host no.such.host.invalid can't be resolved: "), absl::string_view::npos) << status;
}

TEST(LocalDevice, IsTheLocalRanksOrTheOnlyOneThatItSees) {
  DistributedEnvironment env;
  env.local_rank = 1;
  env.local_world_size = 2;
  for (const char* name : {"CUDA_VISIBLE_DEVICES", "TORCHELASTIC_RUN_ID"}) unsetenv(name);
  EXPECT_EQ(*LocalDevice(env, 2), 1);
  EXPECT_NE(LocalDevice(env, 1).status().message().find("local rank 1 of 2, but 1 device"), absl::string_view::npos);
  setenv("CUDA_VISIBLE_DEVICES", "3", 1);
  EXPECT_EQ(*LocalDevice(env, 1), 0);
  setenv("TORCHELASTIC_RUN_ID", "x", 1);
  EXPECT_FALSE(LocalDevice(env, 1).ok()) << "torchrun shows this one to all ranks";
  for (const char* name : {"CUDA_VISIBLE_DEVICES", "TORCHELASTIC_RUN_ID"}) unsetenv(name);
  EXPECT_FALSE(LocalDevice(env, 0).ok());
}

TEST(LocalRankFlag, IsTakenInEverySpelling) {
  for (const std::vector<std::string>& flag : std::vector<std::vector<std::string>>{
           {"--local_rank=1"}, {"--local-rank=1"}, {"--local_rank", "1"}, {"--local-rank", "1"}}) {
    unsetenv("LOCAL_RANK");
    std::vector<std::string> arguments = {"program", "--lr=1"};
    arguments.insert(arguments.end(), flag.begin(), flag.end());
    arguments.insert(arguments.end(), {"--local_rank_file=x", "--", "--local_rank=3"});
    std::vector<char*> argv;
    for (auto& argument : arguments) argv.push_back(argument.data());
    argv.push_back(nullptr);
    int argc = static_cast<int>(argv.size()) - 1;
    ASSERT_TRUE(TakeLocalRankFlag(&argc, argv.data()).ok());
    EXPECT_EQ(std::vector<std::string>(argv.begin(), argv.begin() + argc),
              (std::vector<std::string>{"program", "--lr=1", "--local_rank_file=x", "--", "--local_rank=3"}));
    EXPECT_EQ(argv[static_cast<size_t>(argc)], nullptr);
    EXPECT_STREQ(std::getenv("LOCAL_RANK"), "1");
  }
}

TEST(LocalRankFlag, ConflictsAreNamed) {
  const auto take = [](const char* known, std::string flag) {
    unsetenv("LOCAL_RANK");
    if (known != nullptr) setenv("LOCAL_RANK", known, 1);
    char program[] = "program";
    char* argv[] = {program, flag.data(), nullptr};
    int argc = 2;
    return TakeLocalRankFlag(&argc, argv);
  };
  EXPECT_TRUE(take("1", "--local_rank=1").ok());
  EXPECT_NE(take("0", "--local_rank=1").message().find("LOCAL_RANK=0"), absl::string_view::npos);
  EXPECT_NE(take(nullptr, "--local_rank=x").message().find("--local_rank=x"), absl::string_view::npos);
  EXPECT_FALSE(take(nullptr, "--local_rank").ok());
}

}  // namespace
}  // namespace lockstep
