#pragma once

#include <ATen/core/ivalue.h>
#include <torch/csrc/distributed/c10d/Work.hpp>

#include <atomic>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace lockstep::shm {

class WorkQueue;

/// A collective that was asked for. Whoever waits for it runs it, if nobody has begun it yet: then no thread has to be
/// woken, which would cost more than a small collective itself. Else the queue's own thread does. What hangs on the
/// future runs in a thread that may wait for other collectives.
class QueuedWork : public c10d::Work {
 public:
  QueuedWork(WorkQueue& queue, int rank, c10d::OpType operation, std::vector<at::Tensor> outputs);

  bool isCompleted() override;
  bool isSuccess() const override;
  std::exception_ptr exception() const override;
  /// Zero: without a limit of its own, since the collective has one. With a limit, throws when it has passed; the
  /// collective goes on.
  bool wait(std::chrono::milliseconds timeout = kNoTimeout) override;
  std::vector<at::Tensor> result() override { return outputs_; }
  uint64_t getSequencenumber() const override { return sequence_; }
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override;
  void synchronize() override {}

 protected:
  /// The collective itself; `in_caller` says whether the thread that runs it is waiting for it. Called once; lets go of
  /// what it needed.
  virtual void Run(bool in_caller) = 0;

 private:
  friend class WorkQueue;
  /// Returns the future to be completed, if there is one.
  c10::intrusive_ptr<c10::ivalue::Future> RunNow(bool in_caller);
  void Complete(c10::ivalue::Future& future);

  WorkQueue& queue_;
  uint64_t sequence_ = 0;  // set when it is added
  const std::vector<at::Tensor> outputs_;
  std::atomic<bool> done_{false};                   // exception_ is final
  c10::intrusive_ptr<c10::ivalue::Future> future_;  // under mutex_
};

/// Runs works one after the other, in the order in which they were added.
class WorkQueue {
 public:
  /// `name` begins the errors of works.
  explicit WorkQueue(std::string name) : name_(std::move(name)) {}
  /// Runs what is left.
  ~WorkQueue();
  WorkQueue(const WorkQueue&) = delete;
  WorkQueue& operator=(const WorkQueue&) = delete;

  /// Any thread. `make` is given the work's number and returns the work, in the order of the numbers: 1, 2, 3, …
  /// `large`: worth waking the queue's thread for; a small one is begun within about two milliseconds.
  template <typename Make>
  c10::intrusive_ptr<QueuedWork> Add(bool large, const Make& make) {
    c10::intrusive_ptr<QueuedWork> work;
    bool notify;
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      work = make(last_sequence_ + 1);
      work->sequence_ = ++last_sequence_;
      works_.push_back(work);
      if (!thread_.joinable()) thread_ = std::thread([this] { ThreadMain(); });
      urgent_ |= large;
      notify = asleep_ || large;
      asleep_ = false;
    }
    if (notify) wake_.notify_one();
    return work;
  }
  /// Of the last work that was added.
  uint64_t last_sequence() const {
    const std::lock_guard<std::mutex> lock(mutex_);
    return last_sequence_;
  }

 private:
  friend class QueuedWork;
  /// Runs the first of the queue in this thread, unless `until` is done by then.
  void RunFirst(QueuedWork* until);
  void Urge();
  void ThreadMain();

  const std::string name_;
  std::mutex run_mutex_;  // held by whoever runs a work
  mutable std::mutex mutex_;
  std::condition_variable wake_;
  uint64_t last_sequence_ = 0;
  std::deque<c10::intrusive_ptr<QueuedWork>> works_;
  bool asleep_ = false;  // the thread waits until it is woken
  bool urgent_ = false;
  bool stop_ = false;
  std::thread thread_;
};

}  // namespace lockstep::shm
