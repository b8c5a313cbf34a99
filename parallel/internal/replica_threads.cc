#include "lockstep/parallel/internal/replica_threads.h"

#include <ATen/Parallel.h>
#include <ATen/ThreadLocalState.h>
#include <ATen/autocast_mode.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <c10/util/Exception.h>
#include <omp.h>

#include <algorithm>
#include <chrono>
#include <exception>
#include <optional>
#include <string>
#include <utility>

namespace lockstep::internal {
namespace {

[[noreturn]] void Rethrow(const std::exception_ptr& error, size_t replica, size_t replicas, at::Device device) {
  std::string text = "unknown exception";
  try {
    std::rethrow_exception(error);
  } catch (const c10::Error& e) {
    text = e.what_without_backtrace();
  } catch (const std::exception& e) {
    text = e.what();
  } catch (...) {  // NOLINT: it is nested below
  }
  try {
    std::rethrow_exception(error);
  } catch (...) {
    std::throw_with_nested(c10::Error({__func__, __FILE__, static_cast<uint32_t>(__LINE__)},
                                      "DataParallel: replica " + std::to_string(replica) + " of " +
                                          std::to_string(replicas) + ", on " + device.str() + ": " + text));
  }
}

/// For a while, which in small steps is shorter than what it takes to wake a thread that sleeps; others may have the
/// core.
template <typename Condition>
void WaitAwake(const Condition& condition) {
  const auto begin = std::chrono::steady_clock::now();
  for (std::chrono::steady_clock::duration passed{}; !condition() && passed < std::chrono::microseconds(200);) {
    if (passed > std::chrono::microseconds(20)) std::this_thread::yield();
    passed = std::chrono::steady_clock::now() - begin;
  }
}

/// While it lives, an operation of this thread has `threads` threads. LibTorch's number is each thread's own.
class NumThreads {
 public:
  explicit NumThreads(int threads) : before_(at::get_num_threads()) { Set(threads); }
  ~NumThreads() { Set(before_); }
  NumThreads(const NumThreads&) = delete;
  NumThreads& operator=(const NumThreads&) = delete;

 private:
  static void Set(int threads) {
    if (at::get_num_threads() != threads) at::set_num_threads(threads);
  }
  const int before_;
};

/// While it lives, autocast's cache is used or not; LibTorch's state of a thread has no part of it.
class AutocastCache {
 public:
  explicit AutocastCache(bool used) { at::autocast::set_autocast_cache_enabled(used); }
  ~AutocastCache() { at::autocast::set_autocast_cache_enabled(before_); }
  AutocastCache(const AutocastCache&) = delete;
  AutocastCache& operator=(const AutocastCache&) = delete;

 private:
  const bool before_ = at::autocast::is_autocast_cache_enabled();
};

/// In the threads that LibTorch's operations on the CPU have, of which each replica then has one. They wait awake for
/// the next operation, on cores which other threads would have to take from them. `threads` is how many there are.
void RunInTeam(size_t count, size_t threads, const std::function<void(size_t)>& replica) {
#pragma omp parallel num_threads(std::max(count, threads))
  {
    const auto team = static_cast<size_t>(omp_get_num_threads());
    for (auto i = static_cast<size_t>(omp_get_thread_num()); i < count; i += team) replica(i);
  }
}

}  // namespace

ReplicaThreads::ReplicaThreads(std::vector<at::Device> devices) : devices_(std::move(devices)) {
  for (size_t i = 1; i < devices_.size(); ++i) {
    Worker& worker = workers_.emplace_back();
    worker.replica = i;
    worker.thread = std::thread([this, &worker] { ThreadMain(worker); });
  }
}

ReplicaThreads::~ReplicaThreads() {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    stop_ = true;
  }
  for (Worker& worker : workers_) {
    worker.wake.notify_one();
    worker.thread.join();
  }
}

void ReplicaThreads::ThreadMain(Worker& worker) {
  std::unique_lock<std::mutex> lock(mutex_);
  while (true) {
    const auto called = [&] { return stop_ || worker.task != nullptr; };
    lock.unlock();
    WaitAwake(called);
    lock.lock();
    worker.wake.wait(lock, called);
    if (stop_) return;
    lock.unlock();
    (*worker.task.load())(worker.replica);
    lock.lock();
    worker.task = nullptr;
    if (--running_ == 0) done_.notify_one();
  }
}

void ReplicaThreads::Run(size_t count, const std::function<void(size_t)>& work) {
  const at::ThreadLocalState state;
  const bool autocast_cache = at::autocast::is_autocast_cache_enabled();
  const int threads = at::get_num_threads(), threads_each = std::max(1, threads / static_cast<int>(devices_.size()));
  std::vector<std::exception_ptr> errors(count);
  std::vector<std::optional<c10::Stream>> streams(count);
  for (size_t i = 0; i < count && !devices_[i].is_cpu(); ++i) {
    streams[i] = c10::impl::VirtualGuardImpl(devices_[i].type()).getStream(devices_[i]);
  }
  const std::function<void(size_t)> replica = [&](size_t i) {
    std::optional<at::ThreadLocalStateGuard> state_guard;
    std::optional<AutocastCache> cache_guard;
    if (i > 0) {
      state_guard.emplace(state);
      cache_guard.emplace(autocast_cache);
    }
    const c10::OptionalStreamGuard stream_guard(streams[i]);  // and its device
    try {
      work(i);
    } catch (...) {
      errors[i] = std::current_exception();
    }
  };
  if (devices_[0].is_cpu() && threads_each == 1) {
    RunInTeam(count, static_cast<size_t>(threads), replica);
  } else {
    RunInWorkers(count, [&](size_t i) {
      const NumThreads num_threads(threads_each);
      replica(i);
    });
    at::set_num_threads(threads);  // also that of threads to come, which is whatever was set last
  }
  for (size_t i = 0; i < count; ++i) {
    if (errors[i]) Rethrow(errors[i], i, count, devices_[i]);
  }
}

void ReplicaThreads::RunInWorkers(size_t count, const std::function<void(size_t)>& replica) {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    running_ = count - 1;
    auto worker = workers_.begin();
    for (size_t i = 1; i < count; ++i) worker++->task = &replica;
  }
  auto worker = workers_.begin();
  for (size_t i = 1; i < count; ++i) worker++->wake.notify_one();
  replica(0);
  const auto all_done = [&] { return running_ == 0; };
  WaitAwake(all_done);
  std::unique_lock<std::mutex> lock(mutex_);
  done_.wait(lock, all_done);
}

}  // namespace lockstep::internal
