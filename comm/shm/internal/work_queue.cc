#include "lockstep/comm/shm/internal/work_queue.h"

#include <c10/util/Exception.h>
#include <c10/util/thread_name.h>

#include <utility>

namespace lockstep::shm {
namespace {

// Between two looks of the queue's thread at its works, and how many looks in vain until it sleeps.
constexpr auto kLook = std::chrono::milliseconds(1);
constexpr int kLooks = 100;

}  // namespace

QueuedWork::QueuedWork(WorkQueue& queue, int rank, c10d::OpType operation, std::vector<at::Tensor> outputs)
    : Work(rank, operation), queue_(queue), outputs_(std::move(outputs)) {}

bool QueuedWork::isCompleted() {
  if (done_.load(std::memory_order_acquire)) return true;
  queue_.Urge();
  return false;
}

bool QueuedWork::isSuccess() const { return done_.load(std::memory_order_acquire) && !exception_; }

std::exception_ptr QueuedWork::exception() const {
  return done_.load(std::memory_order_acquire) ? exception_ : nullptr;
}

bool QueuedWork::wait(std::chrono::milliseconds timeout) {
  if (!done_.load(std::memory_order_acquire)) {
    if (timeout == kNoTimeout) {
      while (!done_.load(std::memory_order_acquire)) queue_.RunFirst(this);
    } else {
      queue_.Urge();
      std::unique_lock<std::mutex> lock(mutex_);
      TORCH_CHECK_WITH(DistBackendError, cv_.wait_for(lock, timeout, [this] { return completed_; }), queue_.name_, ": ",
                       c10d::opTypeToString(opType_), " #", sequence_, ": wait timed out after ", timeout.count(),
                       " ms");
    }
  }
  if (exception_) std::rethrow_exception(exception_);
  return true;
}

c10::intrusive_ptr<c10::ivalue::Future> QueuedWork::getFuture() {
  // Nobody will call wait(). One that is done may have outlived its queue.
  if (!done_.load(std::memory_order_acquire)) queue_.Urge();
  std::unique_lock<std::mutex> lock(mutex_);
  if (future_) return future_;
  future_ = c10::make_intrusive<c10::ivalue::Future>(c10::ListType::create(c10::TensorType::get()));
  const bool completed = completed_;  // then nobody else completes the future
  lock.unlock();
  if (completed) Complete(*future_);
  return future_;
}

void QueuedWork::Complete(c10::ivalue::Future& future) {
  if (exception_) {
    future.setError(exception_);
  } else {
    future.markCompleted(outputs_);
  }
}

c10::intrusive_ptr<c10::ivalue::Future> QueuedWork::RunNow(bool in_caller) {
  std::exception_ptr error;
  try {
    Run(in_caller);
  } catch (...) {
    error = std::current_exception();
  }
  c10::intrusive_ptr<c10::ivalue::Future> future;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    future = future_;
    completed_ = true;
    exception_ = error;
    done_.store(true, std::memory_order_release);
  }
  cv_.notify_all();
  return future;
}

WorkQueue::~WorkQueue() {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    stop_ = true;
  }
  wake_.notify_all();
  if (thread_.joinable()) thread_.join();
}

void WorkQueue::Urge() {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (works_.empty() || urgent_) return;
    urgent_ = true;
  }
  wake_.notify_one();
}

void WorkQueue::RunFirst(QueuedWork* until) {
  c10::intrusive_ptr<QueuedWork> work;
  c10::intrusive_ptr<c10::ivalue::Future> future;
  {
    const std::lock_guard<std::mutex> running(run_mutex_);
    if (until != nullptr && until->done_.load(std::memory_order_acquire)) return;
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      if (works_.empty()) return;
      work = std::move(works_.front());
      works_.pop_front();
    }
    future = work->RunNow(/*in_caller=*/until != nullptr);
  }
  if (!future) return;
  // What hangs on the future may wait for the next collective, whoever runs that: so neither under the mutex nor in the
  // queue's thread.
  if (until != nullptr) {
    work->Complete(*future);
  } else {
    std::thread([work, future] { work->Complete(*future); }).detach();
  }
}

void WorkQueue::ThreadMain() {
  c10::setThreadName("lockstep_" + name_.substr(0, 6));
  std::unique_lock<std::mutex> lock(mutex_);
  const QueuedWork* seen = nullptr;  // first in the queue at the last look
  int looks = 0;
  while (true) {
    const QueuedWork* first = works_.empty() ? nullptr : works_.front().get();
    if (first != nullptr && (urgent_ || stop_ || first == seen)) {
      lock.unlock();
      RunFirst(nullptr);
      lock.lock();
      looks = 0;
      continue;
    }
    if (stop_) return;
    seen = first;
    if (first == nullptr) urgent_ = false;
    if (first != nullptr) {
      looks = 0;
    } else if (++looks > kLooks) {
      looks = 0;
      asleep_ = true;
      wake_.wait(lock, [this] { return stop_ || !asleep_; });
    }
    wake_.wait_for(lock, kLook, [this] { return stop_ || (urgent_ && !works_.empty()); });
  }
}

}  // namespace lockstep::shm
