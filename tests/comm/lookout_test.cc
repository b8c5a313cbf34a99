#include "lockstep/comm/lookout.h"

#include <gtest/gtest.h>
#include <torch/csrc/distributed/c10d/HashStore.hpp>

#include <atomic>
#include <future>
#include <stdexcept>
#include <string>

namespace lockstep {
namespace {

using Looks = LivenessMonitor::Looks;

/// A send or receive as Gloo has them: a wait ends when it is done or aborted.
class Transfer : public c10d::Work {
 public:
  bool wait(std::chrono::milliseconds) override { return end_.get_future().get(); }
  void abort() override {
    aborted = true;
    end_.set_value(false);
  }
  void Finish() { end_.set_value(true); }
  void Break() { end_.set_exception(std::make_exception_ptr(std::runtime_error("Connection closed"))); }
  std::atomic<bool> aborted{false};

 private:
  std::promise<bool> end_;
};

std::string Error(LivenessMonitor& monitor, c10d::Work& work, int peer) {
  try {
    return Lookout::OfThisProcess().Wait(monitor, work, peer) ? "" : "not done";
  } catch (const std::exception& e) {
    return e.what();
  }
}

TEST(Lookout, OnlyWhatNeedsTheRankThatIsGoneEnds) {
  const auto store = c10::make_intrusive<c10d::HashStore>();
  LivenessMonitor monitor(store, 0, 3), other(store, 2, 3);
  Transfer from_other, from_any, from_gone;  // rank 1 never was there
  auto one = std::async(std::launch::async, [&] { return Error(monitor, from_other, 2); });
  auto two = std::async(std::launch::async, [&] { return Error(monitor, from_any, Looks::kAny); });
  EXPECT_NE(Error(monitor, from_gone, 1).find("rank 1 is gone: no heartbeat"), std::string::npos);
  EXPECT_FALSE(from_other.aborted || from_any.aborted);
  from_other.Finish();
  from_any.Finish();
  EXPECT_EQ(one.get() + two.get(), "");
}

TEST(Lookout, AReceiveFromAnybodyEndsWhenNobodyIsLeft) {
  LivenessMonitor monitor(c10::make_intrusive<c10d::HashStore>(), 0, 3);
  Transfer transfer;
  EXPECT_NE(Error(monitor, transfer, Looks::kAny).find("rank 1, 2 is gone"), std::string::npos);
}

TEST(Lookout, ErrorsAndAbortsReachTheWaiter) {
  const auto store = c10::make_intrusive<c10d::HashStore>();
  LivenessMonitor monitor(store, 0, 2), other(store, 1, 2);
  Transfer broken, endless;
  broken.Break();
  EXPECT_EQ(Error(monitor, broken, 1), "Connection closed");
  monitor.Abort();
  EXPECT_NE(Error(monitor, endless, 1).find("the group was aborted"), std::string::npos);
}

}  // namespace
}  // namespace lockstep
