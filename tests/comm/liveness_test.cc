#include "lockstep/comm/liveness.h"

#include <c10/util/Exception.h>
#include <gtest/gtest.h>
#include <torch/csrc/distributed/c10d/HashStore.hpp>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>

#include <chrono>
#include <filesystem>
#include <iterator>
#include <memory>
#include <string>
#include <thread>
#include <vector>

namespace lockstep {
namespace {

TEST(Liveness, NamesTheRankThatNoLongerBeats) {
  const auto store = c10::make_intrusive<c10d::HashStore>();
  LivenessMonitor a(store, 0, 3);
  auto b = std::make_unique<LivenessMonitor>(store, 1, 3);
  LivenessMonitor c(store, 2, 3);
  b.reset();
  const std::string verdict = c.Explain("Connection closed by peer\nframe #0", true);
  EXPECT_EQ(verdict, "rank 1 is gone (killed or stopped): Connection closed by peer");
  EXPECT_EQ(a.Explain("Connection closed by peer", true), "stopped because another rank failed: " + verdict);
}

TEST(Liveness, PassesOnWhyAnotherRankFailed) {
  const auto store = c10::make_intrusive<c10d::HashStore>();
  LivenessMonitor a(store, 0, 2), b(store, 1, 2);
  EXPECT_EQ(b.Explain("the loss is nan", false), "the loss is nan");
  EXPECT_EQ(a.Explain("Connection closed by peer", true),
            "stopped because another rank failed: rank 1: the loss is nan");
}

TEST(Liveness, WithEverybodyAliveTheReasonStands) {
  const auto store = c10::make_intrusive<c10d::HashStore>();
  LivenessMonitor a(store, 0, 2), b(store, 1, 2);
  EXPECT_EQ(a.Explain("Timed out waiting 100ms", true), "Timed out waiting 100ms");
}

TEST(Liveness, KnowsWhoIsBehind) {
  const auto store = c10::make_intrusive<c10d::HashStore>();
  LivenessMonitor a(store, 0, 3), b(store, 1, 3), c(store, 2, 3);
  a.SetProgress(7);
  b.SetProgress(7);
  c.SetProgress(6);
  // With their next heartbeats.
  for (int i = 0; i < 100 && !a.Behind(6).empty(); ++i) std::this_thread::sleep_for(std::chrono::milliseconds(50));
  EXPECT_TRUE(a.Behind(6).empty());
  EXPECT_EQ(a.Behind(7), std::vector<int>{2});
  LivenessMonitor alone(nullptr, 0, 1);
  EXPECT_TRUE(alone.Behind(1).empty());
}

/// Of this process.
size_t Threads() {
  const std::filesystem::directory_iterator threads("/proc/self/task");
  return static_cast<size_t>(std::distance(begin(threads), end(threads)));
}

TEST(Liveness, AProcessInManyGroupsHasOneThreadForThem) {
  const auto store = c10::make_intrusive<c10d::HashStore>();
  const auto part = [&](int i) { return c10::make_intrusive<c10d::PrefixStore>(std::to_string(i), store); };
  const LivenessMonitor first(part(0), 0, 2);
  const size_t before = Threads();
  std::vector<std::unique_ptr<LivenessMonitor>> more;
  for (int i = 1; i <= 16; ++i) more.push_back(std::make_unique<LivenessMonitor>(part(i), 0, 2));
  EXPECT_LE(Threads(), before);
}

/// A collective that never comes to its end.
class Endless : public c10d::Work {
 public:
  bool wait(std::chrono::milliseconds) override { TORCH_CHECK(false, "timed out"); }
  bool isCompleted() override { return false; }
};

TEST(Liveness, AnAbortEndsTheWait) {
  const auto store = c10::make_intrusive<c10d::HashStore>();
  LivenessMonitor a(store, 0, 2), b(store, 1, 2), alone(nullptr, 0, 1);
  Endless work;
  for (LivenessMonitor* monitor : {&a, &alone}) {
    monitor->Abort();
    try {
      monitor->Wait(work);
      ADD_FAILURE() << "it ended";
    } catch (const std::exception& e) {
      EXPECT_NE(std::string(e.what()).find("the group was aborted"), std::string::npos) << e.what();
    }
  }
}

TEST(Liveness, AWorldOfOneNeedsNoStore) {
  LivenessMonitor alone(nullptr, 0, 1);
  EXPECT_EQ(alone.Explain("x", true), "x");
}

TEST(Liveness, KnowsBrokenCollectives) {
  EXPECT_TRUE(
      IsCommunicationError("[/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:547] Connection closed by peer"));
  EXPECT_TRUE(IsCommunicationError("shm: ALLREDUCE #3 (sum of Float [4]): rank 1 is gone (its process has ended)"));
  EXPECT_TRUE(IsCommunicationError("gloo: BARRIER #3: rank 1 is gone"));
  EXPECT_FALSE(IsCommunicationError("all-reduce: avg of Int is not defined on backend gloo"));
  EXPECT_FALSE(IsCommunicationError("backend shm: broadcast: one tensor, not 2"));
  EXPECT_FALSE(IsCommunicationError("The size of tensor a (3) must match the size of tensor b (4)"));
}

}  // namespace
}  // namespace lockstep
