#include "lockstep/trainer/stop_signals.h"

#include <c10/util/Exception.h>

#include <atomic>
#include <cstdint>
#include <ctime>
#include <utility>

namespace lockstep {
namespace {

constexpr int64_t kSameWish = 100'000'000;  // nanoseconds

std::atomic<bool> exists{false};
std::atomic<int> first{0};
std::atomic<int64_t> when{0};

int64_t Now() {
  timespec now{};
  clock_gettime(CLOCK_MONOTONIC, &now);
  return int64_t{now.tv_sec} * 1'000'000'000 + now.tv_nsec;
}

void Handle(int signal) {
  int64_t never = 0;
  when.compare_exchange_strong(never, Now());  // before `first`: another thread may be in here too
  int none = 0;
  if (first.compare_exchange_strong(none, signal) || Now() - when < kSameWish) return;
  ::signal(signal, SIG_DFL);
  raise(signal);  // it is blocked while we are here, and comes when we return
}

}  // namespace

StopSignals::StopSignals(std::vector<int> signals) : signals_(std::move(signals)) {
  TORCH_CHECK(!exists.exchange(true), "StopSignals: there is one already");
  first = 0;
  when = 0;
  for (const int signal : signals_) {
    struct sigaction action {};
    action.sa_handler = Handle;
    action.sa_flags = SA_RESTART;
    sigaction(signal, &action, &before_.emplace_back());
  }
}

StopSignals::~StopSignals() {
  for (size_t i = 0; i < signals_.size(); ++i) sigaction(signals_[i], &before_[i], nullptr);
  exists = false;
}

int StopSignals::received() const { return first; }

}  // namespace lockstep
