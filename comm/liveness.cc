#include "lockstep/comm/liveness.h"

#include <torch/csrc/distributed/c10d/PrefixStore.hpp>

#include <chrono>
#include <vector>

#include "lockstep/base/error_text.h"

namespace lockstep {
namespace {

constexpr auto kPeriod = std::chrono::milliseconds(250);
constexpr auto kPatience = std::chrono::milliseconds(2000);
constexpr char kFirstFailure[] = "first_failure";

std::string BeatKey(int rank) { return "beat/" + std::to_string(rank); }

}  // namespace

bool IsCommunicationError(const std::string& text) {
  for (const char* sign : {"gloo", "Connection closed", "Connection reset", "Broken pipe", "NCCL", "ncclRemote",
                           "Timed out", "timed out", "TCPStore", "recvValue failed", "sendBytes failed"}) {
    if (text.find(sign) != std::string::npos) return true;
  }
  return false;
}

LivenessMonitor::LivenessMonitor(const c10::intrusive_ptr<c10d::Store>& store, int rank, int world_size)
    : rank_(rank), world_size_(world_size) {
  if (!store || world_size == 1) return;
  try {
    store_ = c10::make_intrusive<c10d::PrefixStore>("liveness", store->clone());
    store_->setTimeout(kPatience);
  } catch (const std::exception&) {
    store_.reset();  // the rank that holds the store is gone already; the first collective says so
    return;
  }
  thread_ = std::thread(&LivenessMonitor::Beat, this);
}

LivenessMonitor::~LivenessMonitor() {
  if (!thread_.joinable()) return;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    stop_ = true;
  }
  stop_changed_.notify_all();
  thread_.join();
}

void LivenessMonitor::Beat() {
  std::unique_lock<std::mutex> lock(mutex_);
  while (!stop_) {
    try {
      store_->add(BeatKey(rank_), 1);
    } catch (const std::exception&) {
      // The store is slow, or gone because its rank is; in the latter case the next collective says so.
    }
    stop_changed_.wait_for(lock, kPeriod);
  }
}

std::string LivenessMonitor::Explain(const std::string& text, bool communication) {
  const std::string reason = FirstLine(text);
  if (!store_) return reason;
  const std::string mine = "rank " + std::to_string(rank_) + ": " + reason;
  try {
    const auto deadline = std::chrono::steady_clock::now() + kPatience;
    if (!communication) {
      std::lock_guard<std::mutex> lock(mutex_);
      store_->compareSet(kFirstFailure, "", mine);
    }
    // Watches the beats: whoever has not moved at the end is gone. A rank that failed by itself says why.
    std::vector<int64_t> before(world_size_, 0), now(world_size_, 0);
    const auto read = [&](std::vector<int64_t>& into) {
      std::lock_guard<std::mutex> lock(mutex_);
      for (int rank = 0; rank < world_size_; ++rank) into[rank] = store_->add(BeatKey(rank), 0);
      return store_->check({kFirstFailure}) ? store_->get_to_str(kFirstFailure) : std::string();
    };
    std::string first = read(before);
    while (communication && first.empty() && std::chrono::steady_clock::now() < deadline) {
      std::this_thread::sleep_for(kPeriod);
      first = read(now);
    }
    if (!communication) {
      // Rank 0 may hold the store: stay until the others have had time to read the reason.
      if (rank_ == 0) std::this_thread::sleep_for(kPatience / 2);
      return reason;
    }
    if (!first.empty()) {
      if (rank_ == 0) std::this_thread::sleep_for(kPatience / 2);
      return "stopped because another rank failed: " + first;
    }
    std::string gone;
    for (int rank = 0; rank < world_size_; ++rank) {
      if (rank != rank_ && now[rank] == before[rank]) gone += (gone.empty() ? "" : ", ") + std::to_string(rank);
    }
    if (gone.empty()) return reason;
    const std::string verdict = "rank " + gone + " is gone (killed or stopped): " + reason;
    {
      std::lock_guard<std::mutex> lock(mutex_);
      store_->compareSet(kFirstFailure, "", verdict);
    }
    if (rank_ == 0) std::this_thread::sleep_for(kPatience / 2);
    return verdict;
  } catch (const std::exception&) {
    return communication ? "the rank that holds the store (rank 0) is gone: " + reason : reason;
  }
}

}  // namespace lockstep
