#include "lockstep/comm/process_group.h"

#include <ATen/Functions.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <unistd.h>

#include <cstdlib>
#include <string>

#include "lockstep/comm/agree.h"
#include "lockstep/comm/collectives.h"
#include "lockstep/comm/environment.h"
#include "lockstep/comm/texts.h"
#include "lockstep/launch/port.h"

namespace lockstep {
namespace {

const DistributedEnvironment& Env() {
  static const DistributedEnvironment env = ReadEnvironment().value();
  return env;
}

const ProcessGroupPtr& Group() {
  static const ProcessGroupPtr group = InitProcessGroup().value();
  return group;
}

/// A group of its own works: every rank adds rank + 1.
void ExpectWorks(const absl::StatusOr<ProcessGroupPtr>& group) {
  ASSERT_TRUE(group.ok()) << group.status();
  const int world = Env().world_size;
  EXPECT_EQ(GetWorldSize(*group), world);
  EXPECT_EQ(GetRank(*group), Env().rank);
  at::Tensor t = at::full({3}, Env().rank + 1);
  AllReduce(t, *group);
  EXPECT_EQ(t[2].item<int>(), world * (world + 1) / 2);
  Barrier(*group);
}

TEST(ProcessGroup, FromTheEnvironment) { ExpectWorks(Group()); }

TEST(ProcessGroup, FromATcpUrl) {
  int port = 0;
  std::optional<ReservedPort> reserved;
  if (Env().rank == 0) {
    reserved = ReservedPort::Reserve(0).value();
    port = reserved->port();
  }
  const std::string number = AllGatherString(std::to_string(port), Group())[0];
  ProcessGroupOptions options;
  options.init_method = "tcp://127.0.0.1:" + number + "?rank=" + std::to_string(Env().rank) +
                        "&world_size=" + std::to_string(Env().world_size);
  ExpectWorks(InitProcessGroup(options));
}

TEST(ProcessGroup, FromAFileUrl) {
  const char* folder = std::getenv("TEST_TMPDIR");
  const std::string path =
      std::string(folder == nullptr ? "/tmp" : folder) + "/rendezvous." + std::to_string(Env().master_port);
  ProcessGroupOptions options;
  options.init_method = "file://" + path;
  options.rank = Env().rank;
  options.world_size = Env().world_size;
  const auto group = InitProcessGroup(options);
  ExpectWorks(group);
}

TEST(ProcessGroup, FromAGivenStore) {
  if (Env().world_size == 1) return;
  ProcessGroupOptions options;
  options.store = c10::make_intrusive<c10d::PrefixStore>("mine", Group()->getStore());
  EXPECT_FALSE(InitProcessGroup(options).ok()) << "rank and world size are required";
  options.rank = Env().rank;
  options.world_size = Env().world_size;
  ExpectWorks(InitProcessGroup(options));
}

TEST(ProcessGroup, AWorldOfOneIsNullAndOpensNothing) {
  ProcessGroupOptions options;
  options.init_method = "tcp://192.0.2.1:1";  // an address that leads nowhere
  options.rank = 0;
  options.world_size = 1;
  const auto group = InitProcessGroup(options);
  ASSERT_TRUE(group.ok()) << group.status();
  EXPECT_EQ(*group, nullptr);
  at::Tensor t = at::ones({2});
  AllReduce(t, *group);
  EXPECT_EQ(t[0].item<int>(), 1);
  EXPECT_TRUE(AnyRank(true, *group));
}

void ExpectError(const ProcessGroupOptions& options, const std::string& want) {
  const auto group = InitProcessGroup(options);
  ASSERT_FALSE(group.ok()) << want;
  EXPECT_NE(group.status().message().find(want), std::string::npos) << group.status();
}

TEST(ProcessGroup, NamesWhatIsWrong) {
  ProcessGroupOptions options;
  options.rank = 0;
  options.world_size = 2;
  options.timeout = std::chrono::milliseconds(500);
  options.backend = "mpi";
  ExpectError(options, "mpirun may start the ranks");
  options.backend = "smoke";
  ExpectError(options,
              "backend smoke: unknown; known: auto, shm, gloo, hierarchical, nccl, or one per device as in "
              "cpu:shm,cuda:nccl");
  options.backend = "gloo";
  options.init_method = "udp://x";
  ExpectError(options, "unknown method; known: env://");
  options.init_method = "tcp://localhost";
  ExpectError(options, "want tcp://HOST:PORT");
  options.init_method = "tcp://localhost:5?rank=x";
  ExpectError(options, "neither rank=R nor world_size=N");
  options.init_method = "tcp://localhost:5?rank=7";
  ExpectError(options, "rank 7 is not in a world of 2");
  options.init_method = "file://";
  ExpectError(options, "want file:///PATH");
  options.init_method = "file:///nowhere/at/all";
  ExpectError(options, "/nowhere/at/all");
  // What nobody has said must not be guessed.
  for (const char* name : {"RANK", "WORLD_SIZE"}) unsetenv(name);
  options.rank = -1;
  options.init_method = "tcp://localhost:5?world_size=2";
  ExpectError(options, "rank is not given");
  options.init_method = "env://";
  ExpectError(options, "rank is not given");
  options.rank = 0;
  options.world_size = -1;
  options.init_method = "tcp://localhost:5";
  ExpectError(options, "world_size is not given");
  setenv("RANK", std::to_string(Env().rank).c_str(), 1);
  setenv("WORLD_SIZE", std::to_string(Env().world_size).c_str(), 1);
}

TEST(ProcessGroup, APortInUseAndAStoreThatIsNotThere) {
  const int listener = socket(AF_INET6, SOCK_STREAM, 0);
  sockaddr_in6 address{};
  address.sin6_family = AF_INET6;
  ASSERT_EQ(bind(listener, reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0);
  socklen_t size = sizeof(address);
  getsockname(listener, reinterpret_cast<sockaddr*>(&address), &size);
  ProcessGroupOptions options;
  options.rank = 1;
  options.world_size = 2;
  options.timeout = std::chrono::milliseconds(500);
  options.init_method = "tcp://localhost:" + std::to_string(ntohs(address.sin6_port));
  ExpectError(options, "no store at localhost:");  // bound, but nobody listens
  ASSERT_EQ(listen(listener, 1), 0);
  options.rank = 0;
  ExpectError(options, "is in use");
  options.rank = 1;
  ExpectError(options, " within 500 ms: rank 0's store isn't there, or another program has its port");
  close(listener);
}

TEST(Collectives, GatherAndBroadcast) {
  const int world = Env().world_size, rank = Env().rank;
  const auto all = AllGather(at::full({2}, rank), Group());
  ASSERT_EQ(all.size(), static_cast<size_t>(world));
  for (int r = 0; r < world; ++r) EXPECT_EQ(all[r][1].item<int>(), r);
  const auto texts = AllGatherString(std::string(rank, 'x'), Group());
  for (int r = 0; r < world; ++r) EXPECT_EQ(texts[r], std::string(r, 'x'));
  at::Tensor t = at::full({2}, rank);
  Broadcast(t, Group(), world - 1);
  EXPECT_EQ(t[0].item<int>(), world - 1);
  EXPECT_EQ(AnyRank(rank == world - 1, Group()), true);
  EXPECT_EQ(AnyRank(false, Group()), false);
}

TEST(Agree, EveryRankGetsTheLowestRanksError) {
  const int world = Env().world_size, rank = Env().rank;
  EXPECT_TRUE(AgreeOnStatus(absl::OkStatus(), Group()).ok());
  const absl::Status one = AgreeOnStatus(rank == world - 1 ? absl::NotFoundError("gone") : absl::OkStatus(), Group());
  EXPECT_EQ(one.code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(one.message(), world == 1 ? "gone" : "rank " + std::to_string(world - 1) + ": gone");
  EXPECT_EQ(IsAgreed(one), world > 1);
  EXPECT_EQ(AgreeOnStatus(absl::NotFoundError("all"), Group()).message(), "all");
}

}  // namespace
}  // namespace lockstep
