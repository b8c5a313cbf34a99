#pragma once

#include <c10/core/Device.h>

#include <atomic>
#include <condition_variable>
#include <functional>
#include <list>
#include <mutex>
#include <thread>
#include <vector>

namespace lockstep::internal {

/// A thread for each replica but the first, which runs in the calling one; kept from step to step. On the CPU it is one
/// of those in which LibTorch's operations run, unless there are enough for several for each replica. Not for several
/// threads at once.
class ReplicaThreads {
 public:
  explicit ReplicaThreads(std::vector<at::Device> devices);
  ~ReplicaThreads();
  ReplicaThreads(const ReplicaThreads&) = delete;
  ReplicaThreads& operator=(const ReplicaThreads&) = delete;

  /// Calls `work(i)` for each i below `count`, at the same time, and returns when all have come back. The calling
  /// thread's state holds in all (gradients, autocast, inference mode, profiler, streams), device i is the current one,
  /// and the threads of an operation are shared out: each replica has its part of what the calling thread has. Throws
  /// c10::Error, which says where, for the first replica that threw; its exception is nested in it.
  void Run(size_t count, const std::function<void(size_t)>& work);

 private:
  struct Worker {
    std::condition_variable wake{};
    size_t replica = 0;
    std::atomic<const std::function<void(size_t)>*> task{nullptr};  // null: none, or done
    std::thread thread{};
  };

  void ThreadMain(Worker& worker);
  void RunInWorkers(size_t count, const std::function<void(size_t)>& replica);

  const std::vector<at::Device> devices_;
  std::mutex mutex_;
  std::condition_variable done_;
  std::atomic<size_t> running_{0};  // like what follows and tasks, changed under the lock
  std::atomic<bool> stop_{false};
  std::list<Worker> workers_;  // neither copied nor moved
};

}  // namespace lockstep::internal
