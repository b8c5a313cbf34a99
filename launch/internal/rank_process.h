#pragma once

#include <csignal>
#include <string>
#include <vector>

namespace lockstep {

struct RankProcess {
  std::vector<std::string> argv;         ///< Program (searched in PATH) and arguments.
  std::vector<std::string> environment;  ///< All of it, "NAME=value".
  std::vector<int> cores;                ///< Those that it may use; empty: ours.
  int out = -1, err = -1;                ///< What it gets as standard output and error; -1: ours.
  sigset_t mask{};                       ///< Signals that it blocks.
};

/// Why there can be no other process or thread, by errno, and what may be done.
std::string NoProcess(int error);

/// Starts the process in a process group of its own, with nothing to read, and returns its number, or -1 with errno. It
/// dies with the thread that calls this. One that can't be run says so and ends with code 126 or 127.
pid_t StartRank(const RankProcess& process);

}  // namespace lockstep
