#pragma once

#include <string>

#include "lockstep/launch/spawn_options.h"

namespace lockstep {

/// Starts the ranks as processes with RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, MASTER_ADDR, MASTER_PORT,
/// OMP_NUM_THREADS and what else torchrun sets, and waits for all of them. When one fails the rest are ended, and all
/// are started again while there are restarts left. SIGINT, SIGTERM, SIGHUP and SIGQUIT are passed on to all, and a
/// second one kills; SIGUSR1 is passed on; when the calling process dies the ranks die with it. Each rank has a process
/// group of its own, and what it started goes with it. Returns the exit code of the first rank that failed (128 +
/// signal for a killed one), 0 when all succeeded, stop_code when they stopped with it, 128 + signal when a signal
/// ended them, 124 when time was up. Call it from the main thread, before other threads exist.
int SpawnRanks(const SpawnOptions& options);

/// A launch_id that no other launch has.
std::string NewLaunchId();

/// This program, for SpawnOptions::argv.
std::string ThisProgram();

}  // namespace lockstep
