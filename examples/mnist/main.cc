// Trains the MNIST ConvNet, one process per device. Without arguments: Fashion-MNIST, 2 processes on the CPU.

#include <absl/status/status.h>
#include <absl/strings/str_format.h>
#include <ATen/Context.h>
#include <c10/core/DeviceGuard.h>

#include <chrono>
#include <csignal>
#include <cstdio>
#include <memory>
#include <optional>
#include <string>

#include "lockstep/base/malloc.h"
#include "lockstep/comm/environment.h"
#include "lockstep/comm/flight_recorder.h"
#include "lockstep/examples/mnist/config.h"
#include "lockstep/examples/mnist/run_folder.h"
#include "lockstep/examples/mnist/train.h"
#include "lockstep/launch/port.h"
#include "lockstep/launch/rank_main.h"
#include "lockstep/launch/spawn.h"
#include "lockstep/launch/threads.h"
#include "lockstep/trainer/numerics.h"
#include "lockstep/trainer/stop_signals.h"

#include "lockstep/base/logging.h"

namespace {

int Fail(const absl::Status& status) {
  std::fprintf(stderr, "error: %s\n", std::string(status.message()).c_str());
  return 1;
}

/// Starts the ranks: this program again, with RANK and friends set.
int Spawn(int argc, char** argv, const mnist::Config& config, int ranks) {
  if (const absl::Status host = lockstep::CheckHostName(config.master_addr); !host.ok()) return Fail(host);
  const auto port = lockstep::ReservedPort::Reserve(config.port);
  if (!port.ok()) return Fail(port.status());
  lockstep::SpawnOptions options;
  options.argv.assign(argv, argv + argc);
  options.argv[0] = lockstep::ThisProgram();
  options.num_ranks = ranks;
  options.master_addr = config.master_addr;
  options.master_port = port->port();
  options.threads = config.threads;
  options.report_exit_codes = false;  // a rank that fails has said why
  options.stop_code = config.stop_exit_code;
  options.max_restarts = config.max_restarts;
  return lockstep::SpawnRanks(options);
}

}  // namespace

int main(int argc, char** argv) {
  lockstep::KeepFreedMemory();
  FLAGS_logtostderr = true;
  google::InitGoogleLogging(argv[0]);

  if (const absl::Status taken = lockstep::TakeLocalRankFlag(&argc, argv); !taken.ok()) return Fail(taken);
  const auto config = mnist::ParseConfig(argc, argv);
  if (!config.ok()) return Fail(config.status());
  lockstep::SetDeterministic(config->deterministic);
  if (const auto set = lockstep::SetMatmulPrecision(config->matmul_precision); !set.ok()) {
    return Fail(absl::InvalidArgumentError("--matmul_precision: " + std::string(set.message())));
  }
  const auto plan = mnist::MakePlan(*config, at::hasCUDA() ? static_cast<int>(at::getNumGPUs()) : 0);
  if (!plan.ok()) return Fail(plan.status());
  if (plan->ranks_to_spawn > 0) return Spawn(argc, argv, *config, plan->ranks_to_spawn);

  const lockstep::StopSignals signals;
  std::optional<c10::DeviceGuard> device;  // this rank's device is the current one, also for NCCL
  if (plan->cuda) device.emplace(at::Device(at::kCUDA, static_cast<at::DeviceIndex>(plan->device_index)));
  const auto start = std::chrono::steady_clock::now();
  const auto& env = plan->environment;
  const int threads = lockstep::SetThreadsPerRank(config->threads, env.local_world_size);
  lockstep::ProcessGroupOptions options;
  options.backend = config->backend;
  options.cuda = plan->cuda;
  options.timeout = std::chrono::milliseconds(static_cast<int64_t>(config->timeout_seconds * 1000));
  options.check_collectives = config->check_collectives;
  if (!config->flight_recorder.empty()) {
    options.recorder = std::make_shared<lockstep::FlightRecorder>(env.rank, env.world_size, config->flight_recorder);
    lockstep::DumpFlightRecordersOnSignal(SIGUSR2);
  }
  return lockstep::RankMain(options, [&](const lockstep::ProcessGroupPtr& group) -> absl::Status {
    const auto run = mnist::OpenRunFolder(*config, env, group);
    if (!run.ok()) return run.status();
    if (env.rank == 0) {
      const auto dtype = mnist::AutocastType(*config, plan->cuda);
      absl::PrintF("%d rank%s on %s, %d thread%s each, %s; run folder: %s\n", env.world_size,
                   env.world_size == 1 ? "" : "s", plan->cuda ? "CUDA" : "the CPU", threads, threads == 1 ? "" : "s",
                   !dtype                    ? "float32"
                   : *dtype == at::kBFloat16 ? "bfloat16 autocast"
                                             : "float16 autocast",
                   run->folder);
      std::fflush(stdout);
    }
    const absl::Status status = mnist::Train(*config, *plan, *run, signals, group);
    if (status.ok() && env.rank == 0) {
      absl::PrintF("total time: %.1f s\n",
                   std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
    }
    return status;
  });
}
