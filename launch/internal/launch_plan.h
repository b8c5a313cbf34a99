#pragma once

#include <chrono>
#include <csignal>
#include <string>
#include <vector>

#include "lockstep/launch/internal/output_plan.h"
#include "lockstep/launch/spawn_options.h"

namespace lockstep {

/// All that is the same for each start of this host's ranks.
struct LaunchPlan {
  SpawnOptions spawn;
  /// Passed on to the ranks. SIGINT, SIGTERM, SIGHUP and SIGQUIT among them are a wish to end, others are news.
  std::vector<int> signals = {SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGUSR1};
  std::string signals_text = "SIGTERM,SIGINT,SIGHUP,SIGQUIT";  ///< For TORCHELASTIC_SIGNALS_TO_HANDLE.
  std::string role = "default";
  bool virtual_local_rank = false;      ///< Each rank sees its device alone, and is local rank 0.
  std::vector<std::vector<int>> cores;  ///< Of each local rank; empty: ranks are not bound.
  std::chrono::milliseconds tick = std::chrono::milliseconds(50);  ///< How often time limits are looked at.
  OutputPlan output;
  bool any_port = false;   ///< Nobody has chosen spawn.master_port: another one serves as well.
  bool is_init = false;    ///< This process is the first of its container: it gets the orphans.
  bool log_files = false;  ///< Ranks have folders for an error file and what `output` writes to files.
};

}  // namespace lockstep
