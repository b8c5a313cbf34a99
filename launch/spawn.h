#pragma once

#include <chrono>
#include <string>
#include <vector>

namespace lockstep {

struct SpawnOptions {
  std::vector<std::string> argv;          ///< Program (searched in PATH) and arguments of every rank.
  int num_ranks = 1;                      ///< Ranks to start on this host.
  std::string master_addr = "localhost";  ///< Host of rank 0.
  int master_port = 0;                    ///< Port of rank 0's store.
  int threads = 0;  ///< OMP_NUM_THREADS of each rank; 0: left as it is, or cores ÷ ranks if unset.
  /// After one rank has failed the others get this long to end by themselves and say why, then SIGTERM.
  std::chrono::milliseconds grace = std::chrono::seconds(6);
  /// After SIGTERM (or a signal that was passed on), until SIGKILL.
  std::chrono::milliseconds kill_after = std::chrono::seconds(3);
  std::chrono::milliseconds time_limit{0};  ///< Of the whole run; 0: none.
  bool report_exit_codes = true;            ///< Say which rank ended with which code; killed ranks are always said.
  /// A variable that only rank 0 may see, such as the place of a report that one process writes.
  std::vector<std::string> rank_zero_variables;
};

/// Starts the ranks as processes with RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, MASTER_ADDR, MASTER_PORT and
/// OMP_NUM_THREADS set, and waits for all of them. When one fails the rest are ended; SIGINT, SIGTERM and SIGHUP are
/// passed on to all, and a second one kills; when the calling process dies the ranks die with it. Each rank has a
/// process group of its own, and what it started goes with it.
/// Returns the exit code of the first rank that failed (128 + signal for a killed one), 0 when all succeeded, 124 when
/// time was up. Call it from the main thread, before other threads exist.
int SpawnRanks(const SpawnOptions& options);

/// This program, for SpawnOptions::argv.
std::string ThisProgram();

}  // namespace lockstep
