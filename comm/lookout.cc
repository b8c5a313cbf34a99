#include "lockstep/comm/lookout.h"

#include <c10/util/Exception.h>

#include <exception>
#include <iterator>
#include <memory>
#include <thread>
#include <utility>

namespace lockstep {

using Looks = LivenessMonitor::Looks;

Lookout& Lookout::OfThisProcess() {
  static auto* lookout = new Lookout();  // its thread may outlive what is destroyed at the end of the process
  return *lookout;
}

bool Lookout::Wait(LivenessMonitor& monitor, c10d::Work& work, int peer) {
  std::unique_lock<std::mutex> lock(mutex_);
  if (!std::exchange(running_, true)) std::thread([this] { Run(); }).detach();
  waiting_.push_back({monitor, work, peer});
  const auto here = std::prev(waiting_.end());
  lock.unlock();
  bool done = false;
  std::exception_ptr error;
  try {
    done = work.wait();
  } catch (const std::exception&) {
    error = std::current_exception();
  }
  lock.lock();
  const std::string in_vain = here->in_vain;
  waiting_.erase(here);
  lock.unlock();
  if (done) return true;
  TORCH_CHECK_WITH(DistBackendError, in_vain.empty(), in_vain);
  if (error) std::rethrow_exception(error);
  return false;
}

void Lookout::Run() {
  while (true) {
    std::this_thread::sleep_for(Looks::kLook);
    const std::lock_guard<std::mutex> lock(mutex_);
    for (Waiting& waiting : waiting_) LookAt(waiting);
  }
}

void Lookout::LookAt(Waiting& waiting) {
  if (std::exchange(waiting.is_new, false) || !waiting.in_vain.empty()) return;
  if (!waiting.looks) waiting.looks = std::make_unique<Looks>(waiting.monitor);
  waiting.looks->Look();
  waiting.in_vain = waiting.looks->WhyInVain(waiting.peer);
  if (waiting.in_vain.empty()) return;
  try {
    waiting.work.abort();
  } catch (const std::exception&) {
    // A backend whose works can't be aborted; its own limit ends the wait.
  }
}

}  // namespace lockstep
