#include "lockstep/comm/liveness.h"

#include <torch/csrc/distributed/c10d/PrefixStore.hpp>

#include <chrono>
#include <condition_variable>
#include <future>
#include <mutex>
#include <thread>
#include <vector>

#include "lockstep/base/error_text.h"

namespace lockstep {
namespace {

using Clock = std::chrono::steady_clock;

constexpr auto kPeriod = std::chrono::milliseconds(250);
constexpr auto kPatience = std::chrono::milliseconds(2000);
constexpr char kFirstFailure[] = "first_failure";

std::string BeatKey(int rank) { return "beat/" + std::to_string(rank); }

}  // namespace

struct LivenessMonitor::State {
  c10::intrusive_ptr<c10d::Store> store;  // a connection of its own
  int rank = 0;
  int world_size = 1;
  std::mutex store_mutex;  // one thread at a time on the connection
  std::mutex mutex;
  std::condition_variable changed;
  bool stop = false;
  bool stopped = false;

  void Beat() {
    std::unique_lock<std::mutex> lock(mutex);
    while (!stop) {
      lock.unlock();
      try {
        const std::lock_guard<std::mutex> one(store_mutex);
        store->add(BeatKey(rank), 1);
      } catch (const std::exception&) {
        // The store is slow, or gone because its rank is; in the latter case the next collective says so.
      }
      lock.lock();
      changed.wait_for(lock, kPeriod, [this] { return stop; });
    }
    stopped = true;
    changed.notify_all();
  }

  /// Every rank's count, and what the rank that failed first has said.
  std::string Read(std::vector<int64_t>& counts) {
    const std::lock_guard<std::mutex> one(store_mutex);
    counts.resize(world_size);
    for (int r = 0; r < world_size; ++r) counts[r] = store->add(BeatKey(r), 0);
    return store->check({kFirstFailure}) ? store->get_to_str(kFirstFailure) : std::string();
  }

  void LeaveReason(const std::string& text) {
    const std::lock_guard<std::mutex> one(store_mutex);
    store->compareSet(kFirstFailure, "", text);
  }

  std::string Explain(const std::string& reason, bool communication) {
    if (!communication) {
      LeaveReason("rank " + std::to_string(rank) + ": " + reason);
      return reason;
    }
    // Watches the beats: whoever has not moved at the end is gone. A rank that failed by itself says why.
    std::vector<int64_t> before, now;
    std::string first = Read(before);
    for (const auto deadline = Clock::now() + kPatience; first.empty() && Clock::now() < deadline;) {
      std::this_thread::sleep_for(kPeriod);
      first = Read(now);
    }
    if (!first.empty()) return "stopped because another rank failed: " + first;
    std::string gone;
    for (int r = 0; r < world_size; ++r) {
      if (r != rank && now[r] == before[r]) gone += (gone.empty() ? "" : ", ") + std::to_string(r);
    }
    if (gone.empty()) return reason;
    const std::string verdict = "rank " + gone + " is gone (killed or stopped): " + reason;
    LeaveReason(verdict);
    return verdict;
  }
};

LivenessMonitor::LivenessMonitor(const c10::intrusive_ptr<c10d::Store>& store, int rank, int world_size) {
  if (!store || world_size == 1) return;
  auto state = std::make_shared<State>();
  try {
    state->store = c10::make_intrusive<c10d::PrefixStore>("liveness", store->clone());
    state->store->setTimeout(kPatience);
  } catch (const std::exception&) {
    return;  // the rank that holds the store is gone already; the first collective says so
  }
  state->rank = rank;
  state->world_size = world_size;
  state_ = std::move(state);
  std::thread([state = state_] { state->Beat(); }).detach();
}

LivenessMonitor::~LivenessMonitor() {
  if (!state_) return;
  std::unique_lock<std::mutex> lock(state_->mutex);
  state_->stop = true;
  state_->changed.notify_all();
  state_->changed.wait_for(lock, kPatience, [this] { return state_->stopped; });
}

std::string LivenessMonitor::Explain(const std::string& text, bool communication) {
  const std::string reason = FirstLine(text);
  if (!state_) return reason;
  // In a thread: a stopped process that holds the store neither answers nor closes the connection.
  auto answer = std::make_shared<std::promise<std::string>>();
  auto future = answer->get_future();
  std::thread([state = state_, answer, reason, communication] {
    try {
      answer->set_value(state->Explain(reason, communication));
    } catch (const std::exception&) {
      answer->set_value("");
    }
  }).detach();
  std::string line;
  if (future.wait_for(kPatience + std::chrono::seconds(1)) == std::future_status::ready) line = future.get();
  if (line.empty()) return communication ? "the rank that holds the store (rank 0) is gone: " + reason : reason;
  // Rank 0 may hold the store: it stays until the others have had time to read the reason.
  if (state_->rank == 0) std::this_thread::sleep_for(kPatience / 2);
  return line;
}

bool IsCommunicationError(const std::string& text) {
  for (const char* sign : {"gloo", "Connection closed", "Connection reset", "Broken pipe", "NCCL", "ncclRemote",
                           "Timed out", "timed out", "TCPStore", "recvValue failed", "sendBytes failed"}) {
    if (text.find(sign) != std::string::npos) return true;
  }
  return false;
}

}  // namespace lockstep
