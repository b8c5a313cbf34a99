#include "lockstep/parallel/internal/replica_threads.h"

#include <ATen/Parallel.h>
#include <ATen/ThreadLocalState.h>
#include <ATen/autocast_mode.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <c10/util/Exception.h>

#include <algorithm>
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

}  // namespace

ReplicaThreads::ReplicaThreads(std::vector<at::Device> devices) : devices_(std::move(devices)) {
  for (size_t i = 0; i < devices_.size(); ++i) {
    Worker& worker = workers_.emplace_back();
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
    worker.wake.wait(lock, [&] { return stop_ || worker.task != nullptr; });
    if (stop_) return;
    lock.unlock();
    (*worker.task)();
    lock.lock();
    worker.task = nullptr;
    if (--running_ == 0) done_.notify_one();
  }
}

void ReplicaThreads::RunAll(const std::vector<std::function<void()>>& tasks) {
  std::unique_lock<std::mutex> lock(mutex_);
  running_ = tasks.size();
  auto worker = workers_.begin();
  for (const auto& task : tasks) {
    worker->task = &task;
    worker++->wake.notify_one();
  }
  done_.wait(lock, [&] { return running_ == 0; });
}

/// LibTorch's number is of a thread, and of all threads that come later; only the former shall change.
void ReplicaThreads::ShareOutThreads() {
  const int all = at::get_num_threads();
  const int each = std::max(1, all / static_cast<int>(devices_.size()));
  if (each == threads_each_) return;
  std::mutex one_by_one;
  const std::function<void()> set = [&] {
    std::lock_guard<std::mutex> lock(one_by_one);
    at::set_num_threads(each);
  };
  RunAll(std::vector<std::function<void()>>(devices_.size(), set));
  at::set_num_threads(all);
  threads_each_ = each;
}

void ReplicaThreads::Run(size_t count, const std::function<void(size_t)>& work) {
  ShareOutThreads();
  const at::ThreadLocalState state;
  const bool autocast_cache = at::autocast::is_autocast_cache_enabled();
  std::vector<std::exception_ptr> errors(count);
  std::vector<std::function<void()>> tasks;
  for (size_t i = 0; i < count; ++i) {
    std::optional<c10::Stream> stream;
    if (!devices_[i].is_cpu()) stream = c10::impl::VirtualGuardImpl(devices_[i].type()).getStream(devices_[i]);
    tasks.emplace_back([&, i, stream] {
      const at::ThreadLocalStateGuard state_guard(state);
      at::autocast::set_autocast_cache_enabled(autocast_cache);
      const c10::OptionalStreamGuard stream_guard(stream);  // and its device
      try {
        work(i);
      } catch (...) {
        errors[i] = std::current_exception();
      }
    });
  }
  RunAll(tasks);
  for (size_t i = 0; i < count; ++i) {
    if (errors[i]) Rethrow(errors[i], i, count, devices_[i]);
  }
}

}  // namespace lockstep::internal
