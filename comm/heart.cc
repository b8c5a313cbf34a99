#include "lockstep/comm/heart.h"

#include <torch/csrc/distributed/c10d/PrefixStore.hpp>

#include <chrono>
#include <iterator>
#include <thread>
#include <utility>

namespace lockstep {
namespace {

constexpr auto kPeriod = std::chrono::milliseconds(250);
constexpr auto kPatience = std::chrono::milliseconds(2000);

}  // namespace

std::shared_ptr<Heart> Heart::Of(const c10::intrusive_ptr<c10d::Store>& store) {
  static auto& mutex = *new std::mutex();
  static auto& hearts = *new std::map<const c10d::Store*, std::weak_ptr<Heart>>();
  c10::intrusive_ptr<c10d::Store> root = store;
  while (auto* prefix = dynamic_cast<c10d::PrefixStore*>(root.get())) root = prefix->getUnderlyingStore();
  const std::lock_guard<std::mutex> lock(mutex);
  for (auto it = hearts.begin(); it != hearts.end();) it = it->second.expired() ? hearts.erase(it) : std::next(it);
  std::shared_ptr<Heart> heart = hearts[root.get()].lock();
  if (!heart) hearts[root.get()] = heart = std::make_shared<Heart>();
  return heart;
}

int64_t Heart::Add(std::function<void()> beat) {
  const std::lock_guard<std::mutex> lock(mutex_);
  beats_[next_] = std::move(beat);
  added_ = true;
  changed_.notify_all();
  if (!std::exchange(running_, true)) std::thread([self = shared_from_this()] { self->Run(); }).detach();
  return next_++;
}

void Heart::Remove(int64_t number) {
  std::unique_lock<std::mutex> lock(mutex_);
  beats_.erase(number);
  changed_.notify_all();
  changed_.wait_for(lock, kPatience, [&] { return now_ != number; });
}

void Heart::Run() {
  std::unique_lock<std::mutex> lock(mutex_);
  while (!beats_.empty()) {
    added_ = false;
    for (auto it = beats_.begin(); it != beats_.end(); it = beats_.upper_bound(now_)) {
      now_ = it->first;
      const std::function<void()> beat = it->second;
      lock.unlock();
      beat();
      lock.lock();
      changed_.notify_all();
    }
    now_ = -1;
    changed_.notify_all();
    changed_.wait_for(lock, kPeriod, [this] { return added_ || beats_.empty(); });
  }
  running_ = false;
}

}  // namespace lockstep
