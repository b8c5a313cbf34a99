#include "lockstep/comm/environment.h"

#include <absl/status/status.h>
#include <absl/strings/match.h>
#include <absl/strings/numbers.h>
#include <absl/strings/str_cat.h>

#include <netdb.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <optional>
#include <string_view>
#include <thread>
#include <utility>

#include "lockstep/base/status_macros.h"
#include "lockstep/comm/internal/outer_launcher.h"
#include "lockstep/comm/internal/process_tree.h"
#include "lockstep/comm/internal/variables.h"

#include "lockstep/base/logging.h"

namespace lockstep {
namespace {

constexpr int kMaxWorld = 1 << 20;

/// Between two tries to resolve a name, and before the log says that there are several.
constexpr std::chrono::milliseconds kPause(1000), kSayAfter(4000);

/// A pod of Kubernetes' PyTorchJob, which has one process and knows no local ranks. Its master may be told that it is
/// "localhost".
bool IsPod(const std::string& master_addr) {
  if (!Variable("PET_NNODES").empty()) return true;
  if (Variable("KUBERNETES_SERVICE_HOST").empty()) return false;
  return !IsLoopback(master_addr) || absl::EndsWith(Variable("HOSTNAME"), "-master-0");
}

/// RANK and WORLD_SIZE against a launcher that has started us, or what has set them, as well.
absl::Status CheckAgainst(const OuterPlacement& outer, const DistributedEnvironment& env) {
  const bool same = env.rank == outer.rank && env.world_size == outer.world_size;
  if (same || outer.world_size == 1) return absl::OkStatus();
  const std::string groups = Variable("GROUP_WORLD_SIZE");
  if (groups.empty()) {
    const bool ranks_differ = env.rank != outer.rank;
    return absl::InvalidArgumentError(absl::StrCat(
        "environment: ", ranks_differ ? "RANK=" : "WORLD_SIZE=", ranks_differ ? env.rank : env.world_size, " but ",
        ranks_differ ? outer.rank_variable : outer.size_variable, "=", ranks_differ ? outer.rank : outer.world_size,
        "; unset RANK and WORLD_SIZE, ", outer.launcher, " says enough"));
  }
  // srun around a launcher for each host is the ordinary way there; several runs side by side may be meant, too.
  if (outer.launcher == "srun" || groups == std::to_string(outer.world_size)) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      "environment: ", outer.launcher, " has started ", outer.world_size, " launchers (", outer.size_variable, "=",
      outer.world_size, "), and each has made a world of its own (GROUP_WORLD_SIZE=", groups, "); let ", outer.launcher,
      " start the program itself, or one launcher per host with --nnodes=", outer.world_size));
}

/// MASTER_ADDR and MASTER_PORT where they are set.
absl::Status ReadMaster(DistributedEnvironment& env) {
  if (!Variable("MASTER_ADDR").empty()) env.master_addr = Variable("MASTER_ADDR");
  if (!Variable("MASTER_PORT").empty()) {
    LOCKSTEP_ASSIGN_OR_RETURN(env.master_port, NumberVariable("MASTER_PORT", env.world_size == 1 ? 0 : 1, 65535));
  }
  return absl::OkStatus();
}

absl::StatusOr<DistributedEnvironment> FromOuter(const OuterPlacement& outer) {
  DistributedEnvironment env;
  env.launched = true;
  env.rank = outer.rank;
  env.world_size = outer.world_size;
  env.local_rank = outer.local_rank;
  env.local_world_size = outer.local_world_size;
  env.master_addr = outer.master_addr;
  env.master_port = outer.master_port;
  env.launch_id = outer.run;
  LOCKSTEP_RETURN_IF_ERROR(ReadMaster(env));
  if (env.master_addr.empty() || env.master_port == 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("environment: ", outer.launcher, " has started ranks on several hosts, and ",
                     env.master_addr.empty() ? "MASTER_ADDR" : "MASTER_PORT", " is not set; pass ",
                     outer.launcher == "mpirun" ? "-x MASTER_ADDR=HOST -x MASTER_PORT=PORT"
                                                : "-genv MASTER_ADDR HOST -genv MASTER_PORT PORT",
                     " with the host of rank 0 and a free port there"));
  }
  return env;
}

absl::Status ReadLocalRank(const std::optional<OuterPlacement>& outer, DistributedEnvironment& env) {
  if (outer && outer->rank == env.rank && outer->world_size == env.world_size) {
    env.local_rank = outer->local_rank;
    env.local_world_size = outer->local_world_size;
    if (!Variable("LOCAL_RANK").empty()) {
      LOCKSTEP_ASSIGN_OR_RETURN(env.local_rank, NumberVariable("LOCAL_RANK", 0, env.local_world_size - 1));
    }
    return absl::OkStatus();
  }
  const bool pod = Variable("LOCAL_RANK").empty() && IsPod(env.master_addr);
  if (pod && !Variable("PET_NPROC_PER_NODE").empty() && Variable("PET_NPROC_PER_NODE") != "1") {
    return absl::InvalidArgumentError(
        absl::StrCat("environment: PET_NPROC_PER_NODE=", Variable("PET_NPROC_PER_NODE"),
                     " wants several ranks in this pod; start the program by lockstep_run, which reads PET_*"));
  }
  const bool one_host = !pod && (env.world_size == 1 || IsLoopback(env.master_addr));
  if (Variable("LOCAL_WORLD_SIZE").empty()) {
    env.local_world_size = one_host ? env.world_size : 1;
  } else {
    LOCKSTEP_ASSIGN_OR_RETURN(env.local_world_size, NumberVariable("LOCAL_WORLD_SIZE", 1, env.world_size));
  }
  if (!Variable("LOCAL_RANK").empty()) {
    const int high = Variable("LOCAL_WORLD_SIZE").empty() ? env.world_size - 1 : env.local_world_size - 1;
    LOCKSTEP_ASSIGN_OR_RETURN(env.local_rank, NumberVariable("LOCAL_RANK", 0, high));
    return absl::OkStatus();
  }
  if (env.master_addr.empty() && !one_host && !pod) {
    return absl::InvalidArgumentError(
        "environment: MASTER_ADDR is not set; set it to the host of rank 0, localhost if all ranks are on this host");
  }
  if (!one_host && !pod) {
    return absl::InvalidArgumentError(
        absl::StrCat("environment: LOCAL_RANK is not set, and MASTER_ADDR=", env.master_addr,
                     " may mean several hosts; set it to this process's number on its host"));
  }
  env.local_rank = one_host ? env.rank : 0;
  return absl::OkStatus();
}

absl::StatusOr<DistributedEnvironment> FromRank(const std::optional<OuterPlacement>& outer) {
  DistributedEnvironment env;
  env.launched = true;
  LOCKSTEP_ASSIGN_OR_RETURN(env.world_size, NumberVariable("WORLD_SIZE", 1, kMaxWorld));
  LOCKSTEP_ASSIGN_OR_RETURN(env.rank, NumberVariable("RANK", 0, env.world_size - 1));
  if (outer) LOCKSTEP_RETURN_IF_ERROR(CheckAgainst(*outer, env));
  LOCKSTEP_RETURN_IF_ERROR(ReadMaster(env));
  env.agent_store = Variable("TORCHELASTIC_USE_AGENT_STORE") == "True";
  env.launch_id = Variable("TORCHELASTIC_RUN_ID");
  if (env.launch_id.empty() || env.launch_id == "none") env.launch_id = ParentProcess();  // torchrun's for "not given"
  // torchrun counts failures alone, lockstep_run hosts that have come as well. Ours may be of a lockstep_run around
  // torchrun.
  const bool is_ours = !env.agent_store && !Variable("LOCKSTEP_RESTART_COUNT").empty();
  const char* const restarts = is_ours ? "LOCKSTEP_RESTART_COUNT" : "TORCHELASTIC_RESTART_COUNT";
  if (!Variable(restarts).empty()) {
    LOCKSTEP_ASSIGN_OR_RETURN(env.restarts, NumberVariable(restarts, 0, 1 << 30));
  }
  LOCKSTEP_RETURN_IF_ERROR(ReadLocalRank(outer, env));
  return env;
}

}  // namespace

bool IsLoopback(const std::string& host) {
  return host == "localhost" || host == "::1" || host == "[::1]" || absl::StartsWith(host, "127.");
}

absl::Status CheckHostName(const std::string& host, std::chrono::milliseconds timeout) {
  if (host == "localhost") return absl::OkStatus();  // meant even where nothing resolves it
  using Clock = std::chrono::steady_clock;
  const auto begin = Clock::now();
  bool said = false;
  while (true) {
    addrinfo* found = nullptr;
    const int code = getaddrinfo(host.c_str(), nullptr, nullptr, &found);
    if (code == 0) {
      freeaddrinfo(found);
      return absl::OkStatus();
    }
    const auto waited = std::chrono::duration_cast<std::chrono::milliseconds>(Clock::now() - begin);
    if (waited >= timeout) {
      return absl::UnavailableError(
          absl::StrCat("rendezvous: host ", host, " can't be resolved: ", gai_strerror(code)));
    }
    // It may be a mistake, which shall not have to wait for the end to be found.
    if (waited >= kSayAfter && !std::exchange(said, true)) {
      LOG(INFO) << "rendezvous: host " << host << " can't be resolved so far: " << gai_strerror(code)
                << "; trying for another " << (timeout - waited).count() / 1000 << " s";
    }
    std::this_thread::sleep_for(std::min<std::chrono::milliseconds>(kPause, timeout - waited));
  }
}

absl::StatusOr<DistributedEnvironment> ReadEnvironment() {
  const auto outer = ReadOuterLauncher();
  // Where RANK and WORLD_SIZE say enough, an outer launcher whose variables are incomplete is none: they may be
  // inherited, or those of one that we don't know.
  if (!Variable("RANK").empty() || !Variable("WORLD_SIZE").empty()) {
    return FromRank(outer.ok() ? *outer : std::nullopt);
  }
  LOCKSTEP_RETURN_IF_ERROR(outer.status());
  return *outer ? FromOuter(**outer) : DistributedEnvironment();
}

absl::StatusOr<int> LocalDevice(const DistributedEnvironment& environment, int visible_devices) {
  if (environment.local_rank < visible_devices) return environment.local_rank;
  // torchrun and lockstep_run show all devices to all ranks, or have a local rank of 0 for each.
  const std::string visible = Variable("CUDA_VISIBLE_DEVICES");
  const bool its_own = !visible.empty() && !absl::StrContains(visible, ',') && Variable("TORCHELASTIC_RUN_ID").empty();
  if (visible_devices == 1 && its_own) return 0;
  return absl::InvalidArgumentError(absl::StrCat(
      "environment: local rank ", environment.local_rank, " of ", environment.local_world_size, ", but ",
      visible_devices, visible_devices == 1 ? " device" : " devices", " to use on this host; start one rank for each"));
}

absl::Status TakeLocalRankFlag(int* argc, char** argv) {
  int kept = 1;
  absl::Status status;
  bool past_flags = false;
  for (int i = 1; i < *argc; ++i) {
    std::string_view argument = argv[i];
    past_flags |= argument == "--";
    const bool ours = !past_flags &&
                      (argument.substr(0, 12) == "--local_rank" || argument.substr(0, 12) == "--local-rank") &&
                      (argument.size() == 12 || argument[12] == '=');
    if (!ours) {
      argv[kept++] = argv[i];
      continue;
    }
    std::string value;
    if (argument.size() > 12) {
      value = std::string(argument.substr(13));
    } else if (i + 1 < *argc) {
      value = argv[++i];
    }
    int local_rank = -1;
    if (!absl::SimpleAtoi(value, &local_rank) || local_rank < 0) {
      status.Update(absl::InvalidArgumentError(absl::StrCat("--local_rank=", value, ": want a number from 0 on")));
      continue;
    }
    const std::string known = Variable("LOCAL_RANK");
    if (!known.empty() && known != std::to_string(local_rank)) {
      status.Update(absl::InvalidArgumentError(absl::StrCat("--local_rank=", local_rank, " but LOCAL_RANK=", known,
                                                            "; they come from different launchers")));
      continue;
    }
    setenv("LOCAL_RANK", std::to_string(local_rank).c_str(), 1);
  }
  argv[kept] = nullptr;
  *argc = kept;
  return status;
}

}  // namespace lockstep
