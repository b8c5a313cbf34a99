// The launcher's small parts: endpoints, choices of streams, shares of cores, GPUs, the spelling of options.

#include <gtest/gtest.h>
#include <sched.h>

#include <cstdlib>
#include <string>
#include <vector>

#include "lockstep/launch/internal/arguments.h"
#include "lockstep/launch/internal/core_binding.h"
#include "lockstep/launch/internal/endpoint.h"
#include "lockstep/launch/internal/gpu_count.h"
#include "lockstep/launch/internal/launcher_options.h"
#include "lockstep/launch/internal/stream_choice.h"

namespace lockstep {
namespace {

std::string Parsed(const std::string& text, int default_port = 29400) {
  const auto endpoint = ParseEndpoint(text, default_port);
  return endpoint ? endpoint->host + " " + std::to_string(endpoint->port) : "none";
}

TEST(Endpoint, IsParsed) {
  EXPECT_EQ(Parsed("host"), "host 29400");
  EXPECT_EQ(Parsed("host:12"), "host 12");
  EXPECT_EQ(Parsed("[::1]:12"), "::1 12");
  EXPECT_EQ(Parsed("[::1]"), "::1 29400");
  EXPECT_EQ(Parsed("fd00::1"), "fd00::1 29400");
  for (const char* text : {"", ":12", "host:", "host:x", "host:70000", "[::1", "[::1]x", "[::1]:"}) {
    EXPECT_EQ(Parsed(text), "none") << text;
  }
  EXPECT_EQ(Parsed("host", -1), "none");
}

TEST(Endpoint, ThisMachineIsKnown) {
  for (const char* host : {"localhost", "127.0.0.1"}) EXPECT_TRUE(IsThisMachine(host)) << host;
  EXPECT_FALSE(IsThisMachine("192.0.2.1"));
}

TEST(StreamChoice, IsOneForAllOrOneForEach) {
  const auto all = StreamChoice::Parse("--tee", "3");
  EXPECT_EQ(all->Of(5), StreamChoice::kOut | StreamChoice::kErr);
  const auto some = StreamChoice::Parse("--tee", "0:3,12:1");
  EXPECT_EQ(some->Of(0), 3);
  EXPECT_EQ(some->Of(12), 1);
  EXPECT_EQ(some->Of(1), 0);
  EXPECT_TRUE(some->Any());
  EXPECT_FALSE(StreamChoice::Parse("--tee", "0")->Any());
  for (const char* text : {"", "4", "-1", "0:4", "0:", ":1", "0:1,", "0:1,0:2", "x"}) {
    const auto choice = StreamChoice::Parse("--tee", text);
    ASSERT_FALSE(choice.ok()) << text;
    EXPECT_NE(choice.status().message().find(std::string("--tee=") + text), absl::string_view::npos);
  }
}

TEST(Cores, AreSharedOut) {
  const std::vector<CoreList> cores = {{0}, {4}, {1}, {5}, {2}};
  EXPECT_EQ(ShareOut(cores, 2), (std::vector<CoreList>{{0, 4}, {1, 5, 2}}));
  EXPECT_EQ(ShareOut(cores, 1), (std::vector<CoreList>{{0, 4, 1, 5, 2}}));
  const std::vector<CoreList> nodes = {{0, 1}, {2, 3}};
  EXPECT_EQ(ShareOut(nodes, 4), (std::vector<CoreList>{{0, 1}, {0, 1}, {2, 3}, {2, 3}}));
  EXPECT_EQ(ShareOut(nodes, 3), (std::vector<CoreList>{{0, 1}, {0, 1}, {2, 3}})) << "more ranks than nodes";
}

TEST(Cores, ListsOfTheKernelAreRead) {
  EXPECT_EQ(ParseCoreList("0-2,8\n"), (CoreList{0, 1, 2, 8}));
  EXPECT_EQ(ParseCoreList(""), CoreList{});
  EXPECT_EQ(ParseCoreList("1023-1025"), (CoreList{1023, 1024, 1025}));
}

TEST(Cores, OfEveryRankAreSomeThatThisProcessMayUse) {
  cpu_set_t allowed;
  ASSERT_EQ(sched_getaffinity(0, sizeof(allowed), &allowed), 0);
  for (const bool by_numa_node : {false, true}) {
    const auto shares = BindRanks(by_numa_node, 3);
    ASSERT_EQ(shares.size(), 3u);
    for (const CoreList& share : shares) {
      EXPECT_FALSE(share.empty());
      for (const int core : share) EXPECT_TRUE(CPU_ISSET(core, &allowed)) << core;
    }
  }
}

TEST(Gpus, AreNoMoreThanMayBeSeen) {
  setenv("CUDA_VISIBLE_DEVICES", "", 1);
  EXPECT_EQ(*CountGpus(), 0);
  setenv("CUDA_VISIBLE_DEVICES", "-1", 1);
  EXPECT_EQ(*CountGpus(), 0);
  unsetenv("CUDA_VISIBLE_DEVICES");
  const int all = *CountGpus();
  if (all == 0) GTEST_SKIP() << "there is no GPU here";
  setenv("CUDA_VISIBLE_DEVICES", "0", 1);
  EXPECT_EQ(*CountGpus(), 1);
  setenv("CUDA_VISIBLE_DEVICES", std::to_string(all).c_str(), 1);
  EXPECT_FALSE(CountGpus().ok());
  unsetenv("CUDA_VISIBLE_DEVICES");
}

TEST(Gpus, AreThoseBeforeTheFirstNameOfNone) {
  EXPECT_EQ(*CountVisible("", 8), 0);
  EXPECT_EQ(*CountVisible("NoDevFiles", 8), 0) << "Slurm's, for a job without GPUs";
  EXPECT_EQ(*CountVisible("2, 3,-1,4", 8), 2);
  EXPECT_EQ(*CountVisible("GPU-12ab,MIG-34cd,none,1", 8), 2);
  EXPECT_FALSE(CountVisible("0,8", 8).ok());
}

/// The options, or the error.
absl::StatusOr<LauncherOptions> Read(std::vector<std::string> words) {
  words.insert(words.begin(), "lockstep_run");
  words.push_back("program");
  std::vector<char*> argv;
  for (auto& word : words) argv.push_back(word.data());
  const auto arguments = Arguments::Parse(static_cast<int>(argv.size()), argv.data());
  return arguments.ok() ? ReadLauncherOptions(*arguments) : arguments.status();
}

TEST(Options, CommandLineCountsMoreThanEnvironment) {
  setenv("PET_NPROC_PER_NODE", "3", 1);
  EXPECT_EQ(Read({})->plan.spawn.num_ranks, 3);
  EXPECT_EQ(Read({"--nproc-per-node", "2"})->plan.spawn.num_ranks, 2);
  setenv("PET_NPROC_PER_NODE", "x", 1);
  EXPECT_NE(Read({}).status().message().find("PET_NPROC_PER_NODE=x"), absl::string_view::npos);
  setenv("PET_NPROC_PER_NODE", "", 1);
  EXPECT_EQ(Read({})->plan.spawn.num_ranks, 1) << "empty is as good as not set";
  unsetenv("PET_NPROC_PER_NODE");
  setenv("PET_TEE", "4", 1);
  EXPECT_NE(Read({}).status().message().find("PET_TEE=4: want"), absl::string_view::npos);
  unsetenv("PET_TEE");
  setenv("PET_STANDALONE", "yes", 1);
  EXPECT_NE(Read({}).status().message().find("PET_STANDALONE=yes: want 0 or 1"), absl::string_view::npos);
  unsetenv("PET_STANDALONE");
}

TEST(Options, WhatIsRefusedIsRefusedInTheEnvironmentToo) {
  for (const char* name : {"PET_LOGS_SPECS", "PET_NUMA_BINDING", "PET_MODULE"}) {
    setenv(name, "1", 1);
    EXPECT_NE(Read({}).status().message().find(std::string(name) + ": "), absl::string_view::npos) << name;
    unsetenv(name);
  }
}

TEST(Options, OfMeeting) {
  const auto elastic = Read({"--nnodes=2:4", "--rdzv_backend=c10d", "--rdzv_endpoint=[fd00::1]:7",
                             "--rdzv_conf=join_timeout=5,last_call_timeout=0.5,is_host=0"});
  ASSERT_TRUE(elastic.ok()) << elastic.status();
  EXPECT_FALSE(elastic->alone);
  EXPECT_EQ(elastic->meeting.min_nodes, 2);
  EXPECT_EQ(elastic->meeting.max_nodes, 4);
  EXPECT_EQ(elastic->meeting.host, "fd00::1");
  EXPECT_EQ(elastic->meeting.join_timeout, std::chrono::seconds(5));
  EXPECT_EQ(elastic->meeting.last_call_timeout, std::chrono::milliseconds(500));
  EXPECT_EQ(elastic->meeting.is_host, false);
  EXPECT_TRUE(Read({"--nnodes=4", "--standalone"})->alone);
  const auto alone = Read({"--rdzv_backend=c10d", "--rdzv_endpoint=localhost:0"});
  EXPECT_TRUE(alone->alone);
  EXPECT_EQ(alone->master_port, 0);
}

TEST(Options, WhatIsWrongIsNamed) {
  const std::vector<std::pair<std::vector<std::string>, std::string>> cases = {
      {{"--nnodes=0"}, "--nnodes=0: want a number of hosts"},
      {{"--nnodes=3:2", "--rdzv_backend=c10d"}, "--nnodes=3:2"},
      {{"--nnodes=1:2"}, "--nnodes=1:2: a range needs --rdzv_backend=c10d"},
      {{"--nnodes=2", "--node_rank=2"}, "--node_rank=2: hosts are numbered from 0 to 1"},
      {{"--nnodes=2", "--rdzv_backend=c10d"}, "give --rdzv_endpoint=HOST:PORT"},
      {{"--nnodes=2", "--master_port=0"}, "hosts need a port to meet at"},
      {{"--rdzv_backend=etcd"}, "no etcd is spoken here"},
      {{"--rdzv_backend=mine"}, "--rdzv_backend=mine: want static or c10d"},
      {{"--rdzv_endpoint=host"}, "--rdzv_endpoint=host: want HOST:PORT"},
      {{"--rdzv_conf=x=1"}, "'x' is unknown"},
      {{"--rdzv_conf=timeout=0"}, "timeout must be over 0"},
      {{"--rdzv_conf=store_type=file"}, "store_type is tcp"},
      {{"--rdzv_conf=close_timeout=3"}, "close_timeout has no meaning here"},
      {{"--rdzv_conf=keep_alive_interval=0.000001"}, "keep_alive_interval must be 0.01 or more"},
      {{"--rdzv_conf=keep_alive_interval=0.1"}, "given up after 0.3 s of silence"},
      {{"--rdzv_conf=keep_alive_max_attempt=1"}, "keep_alive_max_attempt must be 2 or more"},
      {{"--tee=7"}, "--tee=7"},
      {{"--tee=9:3"}, "--tee=9:3: there is no local rank 9, with --nproc_per_node=1 the last one is 0"},
      {{"--redirects=0:1,2:1", "--nproc_per_node=2"}, "there is no local rank 2"},
      {{"--local_ranks_filter=0,7", "--nproc_per_node=2"}, "--local_ranks_filter=0,7: there is no local rank 7"},
      {{"--local_ranks_filter=a"}, "--local_ranks_filter=a"},
      {{"--duplicate_stdout_filters=a"}, "only lines of --tee"},
      {{"--signals_to_handle=SIGKILL"}, "'SIGKILL' is no signal"},
      {{"--start_method=fork"}, "--start_method=fork: want spawn"},
      {{"--event_log_handler=console"}, "--event_log_handler=console: want null"},
      {{"--monitor_interval=0"}, "--monitor_interval=0"},
      {{"--expendable_from=0"}, "--expendable_from=0: want a number from 1"},
      {{"--bind=sockets"}, "--bind=sockets: want none or cores or numa"},
      {{"--nproc_per_node=xpu"}, "only NVIDIA's GPUs"},
      {{"-m"}, "--module: programs are run as they are"},
      {{"-x"}, "unknown option -x"},
      {{"--standalone=1"}, "--standalone takes no value"}};
  for (const auto& [words, want] : cases) {
    const auto options = Read(words);
    ASSERT_FALSE(options.ok()) << words[0];
    EXPECT_NE(options.status().message().find(want), absl::string_view::npos) << options.status();
  }
}

}  // namespace
}  // namespace lockstep
