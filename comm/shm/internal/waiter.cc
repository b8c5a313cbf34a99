#include "lockstep/comm/shm/internal/waiter.h"

#include <linux/futex.h>
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <climits>
#include <ctime>

namespace lockstep::shm {
namespace {

long Futex(std::atomic<uint32_t>& word, int operation, uint32_t value, const timespec* timeout) {
  return syscall(SYS_futex, reinterpret_cast<uint32_t*>(&word), operation, value, timeout, nullptr, 0);
}

void Pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

}  // namespace

// Either the sleeper's look at the value, after it has counted itself, sees the new value, or the setter's look at the
// sleepers, after it has set the value, sees the sleeper: both are sequentially consistent.
void Counter::Set(uint32_t to) {
  value.store(to, std::memory_order_seq_cst);
  if (sleepers.load(std::memory_order_seq_cst) != 0) WakeAll();
}

void Counter::Bump() {
  value.fetch_add(1, std::memory_order_seq_cst);
  if (sleepers.load(std::memory_order_seq_cst) != 0) WakeAll();
}

void Counter::WakeAll() { Futex(value, FUTEX_WAKE, INT_MAX, nullptr); }

bool Waiter::Spin(const Counter& counter, uint32_t target) const {
  for (int i = 0; i < spins_; ++i) {
    Pause();
    if (counter.Reached(target)) return true;
  }
  for (int i = 0; i < kYields; ++i) {
    sched_yield();
    if (counter.Reached(target)) return true;
  }
  return false;
}

void Waiter::Sleep(Counter& counter, uint32_t target) {
  const timespec slice{0, 100 * 1000 * 1000};
  counter.sleepers.fetch_add(1, std::memory_order_seq_cst);
  const uint32_t seen = counter.value.load(std::memory_order_seq_cst);
  if (static_cast<int32_t>(seen - target) < 0) Futex(counter.value, FUTEX_WAIT, seen, &slice);
  counter.sleepers.fetch_sub(1, std::memory_order_seq_cst);
}

}  // namespace lockstep::shm
