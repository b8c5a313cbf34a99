#pragma once

#include <torch/csrc/distributed/c10d/Store.hpp>

#include <cstdint>
#include <condition_variable>
#include <functional>
#include <map>
#include <memory>
#include <mutex>

namespace lockstep {

/// Calls functions again and again, some times a second, in one thread for all groups of this process that have a store
/// in common: a process may be in many. The functions speak with that store, which may hold them all up. Thread-safe.
class Heart : public std::enable_shared_from_this<Heart> {
 public:
  /// That of the store below the prefixes of `store`.
  static std::shared_ptr<Heart> Of(const c10::intrusive_ptr<c10d::Store>& store);

  /// Begins at once. The number is for Remove.
  int64_t Add(std::function<void()> beat);
  /// It isn't called any more; waits until it has returned, but not for a store that doesn't answer for some seconds.
  void Remove(int64_t number);

 private:
  void Run();

  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<int64_t, std::function<void()>> beats_;
  int64_t next_ = 0, now_ = -1;  // now_: being called
  bool running_ = false, added_ = false;
};

}  // namespace lockstep
