#pragma once

#include <c10/core/Device.h>

#include <condition_variable>
#include <exception>
#include <functional>
#include <list>
#include <mutex>
#include <thread>
#include <vector>

namespace lockstep::internal {

/// A thread for each replica, kept from step to step. Not for several threads at once.
class ReplicaThreads {
 public:
  explicit ReplicaThreads(std::vector<at::Device> devices);
  ~ReplicaThreads();
  ReplicaThreads(const ReplicaThreads&) = delete;
  ReplicaThreads& operator=(const ReplicaThreads&) = delete;

  /// Calls `work(i)` for each i below `count` in thread i, and returns when all have come back. There the calling
  /// thread's state holds (gradients, autocast, inference mode, profiler, streams), device i is the current one, and
  /// the threads of an operation are shared out: each replica has its part of what the calling thread has. Throws
  /// c10::Error, which says where, for the first replica that threw; its exception is nested in it.
  void Run(size_t count, const std::function<void(size_t)>& work);

 private:
  struct Worker {
    std::condition_variable wake;
    const std::function<void()>* task = nullptr;  // null: none, or done
    std::thread thread{};
  };

  void ThreadMain(Worker& worker);
  /// Task i in thread i, at the same time.
  void RunAll(const std::vector<std::function<void()>>& tasks);
  void ShareOutThreads();

  const std::vector<at::Device> devices_;
  std::mutex mutex_;
  std::condition_variable done_;
  size_t running_ = 0;
  bool stop_ = false;
  int threads_each_ = 0;       // of an operation
  std::list<Worker> workers_;  // neither copied nor moved
};

}  // namespace lockstep::internal
