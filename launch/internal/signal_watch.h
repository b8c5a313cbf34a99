#pragma once

#include <csignal>
#include <vector>

namespace lockstep {

/// While it lives, the signals don't end this process but can be read one by one. Ones that were ignored from the
/// start, as by nohup, stay ignored. SIGCHLD is watched too, and SIGPIPE does nothing: that nobody reads what a
/// launcher says is no reason to end its ranks.
class SignalWatch {
 public:
  explicit SignalWatch(const std::vector<int>& signals);
  ~SignalWatch();
  SignalWatch(const SignalWatch&) = delete;
  SignalWatch& operator=(const SignalWatch&) = delete;

  /// Readable when a signal has come.
  int fd() const { return fd_; }

  /// The next one that has come; 0: none.
  int Next();

  /// The mask from before, for children.
  const sigset_t& before() const { return before_; }

 private:
  int fd_ = -1;
  sigset_t blocked_, before_;
  struct sigaction child_before_ {};
};

}  // namespace lockstep
