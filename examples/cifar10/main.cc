// Trains a ResNet on CIFAR-10, one process per device, under torchrun, our launcher, or by itself.

#include <absl/status/status.h>
#include <absl/strings/str_cat.h>
#include <ATen/Context.h>
#include <c10/core/DeviceGuard.h>

#include <chrono>
#include <cstdio>
#include <optional>
#include <string>

#include "lockstep/base/malloc.h"
#include "lockstep/comm/environment.h"
#include "lockstep/examples/cifar10/config.h"
#include "lockstep/examples/cifar10/train.h"
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
int Spawn(int argc, char** argv, const cifar10::Config& config, int ranks) {
  const auto port = lockstep::ReservedPort::Reserve(0);
  if (!port.ok()) return Fail(port.status());
  lockstep::SpawnOptions options;
  options.argv.assign(argv, argv + argc);
  options.argv[0] = lockstep::ThisProgram();
  options.num_ranks = ranks;
  options.master_port = port->port();
  options.threads = config.threads;
  options.report_exit_codes = false;  // a rank that fails has said why
  options.stop_code = config.trainer.run.stop_exit_code;
  return lockstep::SpawnRanks(options);
}

}  // namespace

int main(int argc, char** argv) {
  lockstep::KeepFreedMemory();
  FLAGS_logtostderr = true;
  google::InitGoogleLogging(argv[0]);

  if (const absl::Status taken = lockstep::TakeLocalRankFlag(&argc, argv); !taken.ok()) return Fail(taken);
  cifar10::Config config;
  lockstep::ConfigFields fields;
  if (const absl::Status parsed = cifar10::ParseConfig(argc, argv, config, fields); !parsed.ok()) return Fail(parsed);
  const auto plan = cifar10::MakePlan(config, at::hasCUDA() ? static_cast<int>(at::getNumGPUs()) : 0);
  if (!plan.ok()) return Fail(plan.status());
  if (plan->ranks_to_spawn > 0) return Spawn(argc, argv, config, plan->ranks_to_spawn);

  const lockstep::StopSignals signals;
  lockstep::SetDeterministic(config.deterministic);
  std::optional<c10::DeviceGuard> device;  // this rank's device is the current one, also for NCCL
  if (plan->device_index >= 0) {
    device.emplace(at::Device(at::kCUDA, static_cast<at::DeviceIndex>(plan->device_index)));
  }
  lockstep::SetThreadsPerRank(config.threads, plan->environment.local_world_size);
  lockstep::ProcessGroupOptions options;
  options.backend = config.backend;
  options.cuda = plan->device_index >= 0;
  options.timeout = std::chrono::milliseconds(static_cast<int64_t>(config.timeout * 1000));
  return lockstep::RankMain(options, [&](const lockstep::ProcessGroupPtr& group) {
    return cifar10::Train(config, fields, *plan, signals, group);
  });
}
