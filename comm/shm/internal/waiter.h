#pragma once

#include <atomic>
#include <cstdint>

namespace lockstep::shm {

/// A number in shared memory that its owner counts up and others wait for. It may wrap around.
struct alignas(64) Counter {
  std::atomic<uint32_t> value{0};
  std::atomic<uint32_t> sleepers{0};

  /// Sets the value and wakes those who sleep on it.
  void Set(uint32_t to);
  /// Counts up by one, from any process, and wakes those who sleep.
  void Bump();
  void WakeAll();
  bool Reached(uint32_t target) const {
    return static_cast<int32_t>(value.load(std::memory_order_acquire) - target) >= 0;
  }
};

/// How to wait. Spinning is the quickest, and burns the time of the very rank that is waited for when there are more
/// ranks than cores: then the core is yielded a few times instead. Who still waits sleeps on a futex.
class Waiter {
 public:
  explicit Waiter(bool spin) : spins_(spin ? kSpins : 0) {}

  /// Returns once `counter` has reached `target`. While asleep, calls `check` about ten times a second; it throws to
  /// give up.
  template <typename Check>
  void Wait(Counter& counter, uint32_t target, const Check& check) const {
    if (counter.Reached(target) || Spin(counter, target)) return;
    while (!counter.Reached(target)) {
      check();
      Sleep(counter, target);
    }
  }

  /// Returns once `counter` has reached `target`, or after about a tenth of a second.
  void WaitOnce(Counter& counter, uint32_t target) const {
    if (!counter.Reached(target) && !Spin(counter, target)) Sleep(counter, target);
  }

 private:
  static constexpr int kSpins = 2000;
  static constexpr int kYields = 100;
  bool Spin(const Counter& counter, uint32_t target) const;
  static void Sleep(Counter& counter, uint32_t target);

  int spins_;
};

}  // namespace lockstep::shm
