#pragma once

#include <chrono>
#include <string>
#include <vector>

namespace lockstep {

/// How SpawnRanks starts this host's ranks.
struct SpawnOptions {
  std::vector<std::string> argv;          ///< Program (searched in PATH) and arguments of every rank.
  int num_ranks = 1;                      ///< Ranks to start on this host.
  std::string master_addr = "localhost";  ///< Host of rank 0.
  int master_port = 0;                    ///< Port of rank 0's store.
  int threads = 0;  ///< OMP_NUM_THREADS of each rank; 0: left as it is, or cores ÷ ranks if unset.
  /// After one rank has failed the others get this long to end by themselves and say why, then SIGTERM.
  std::chrono::milliseconds grace = std::chrono::seconds(6);
  /// After that SIGTERM, until SIGKILL.
  std::chrono::milliseconds kill_after = std::chrono::seconds(3);
  /// After that SIGKILL, until one that has not ended even so is left behind: a broken driver may hold it for ever.
  std::chrono::milliseconds leave_after = std::chrono::seconds(60);
  /// After a signal that was passed on, for ranks to save what they have, until SIGKILL.
  std::chrono::milliseconds stop_grace = std::chrono::seconds(30);
  /// Ranks end with it that were stopped by a signal, have saved and want to be started again later: no failure.
  int stop_code = 75;
  /// Ranks from this one on may fail while the others go on, and their codes don't count; -1: none may.
  int expendable_from = -1;
  int max_restarts = 0;   ///< After a failure all ranks are started again, so often.
  std::string launch_id;  ///< TORCHELASTIC_RUN_ID, the same after a restart; empty: one that no other launch has.
  std::chrono::milliseconds time_limit{0};  ///< Of the whole run; 0: none.
  bool report_exit_codes = true;            ///< Say which rank ended with which code; killed ranks are always said.
  /// A variable that only rank 0 may see, such as the place of a report that one process writes.
  std::vector<std::string> rank_zero_variables;
};

}  // namespace lockstep
