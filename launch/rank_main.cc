#include "lockstep/launch/rank_main.h"

#include <absl/strings/match.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <string>
#include <thread>

#include "lockstep/base/error_text.h"
#include "lockstep/base/exit_code.h"
#include "lockstep/comm/agree.h"
#include "lockstep/comm/environment.h"
#include "lockstep/comm/liveness.h"
#include "lockstep/launch/internal/begin_rank.h"

namespace lockstep {
namespace {

void PrintError(int rank, int world_size, const std::string& message) {
  const std::string who = world_size > 1 ? "rank " + std::to_string(rank) + ": " : "";
  std::fprintf(stderr, "%serror: %s\n", who.c_str(), message.c_str());
  std::fflush(stderr);
}

}  // namespace

int RankMain(const ProcessGroupOptions& options, const std::function<absl::Status(const ProcessGroupPtr&)>& body) {
  BeginRank();
  absl::StatusOr<ProcessGroupPtr> joined = absl::UnknownError("");
  try {
    joined = InitProcessGroup(options);
  } catch (const std::exception& e) {
    joined = absl::UnavailableError(FirstLine(e.what()));
  }
  if (!joined.ok()) {
    const auto environment = ReadEnvironment();
    const bool known = environment.ok();
    PrintError(known ? environment->rank : 0, known ? environment->world_size : 1,
               std::string(joined.status().message()));
    return 1;
  }
  ProcessGroupPtr group = *std::move(joined);
  const int rank = GetRank(group), world_size = GetWorldSize(group);
  LivenessMonitor monitor(group ? group->getStore() : nullptr, rank, world_size);
  std::string failure;
  try {
    const absl::Status status = body(group);
    const auto code = ExitCodeOf(status);
    if (status.ok() || IsAgreed(status) || code) {
      if (code && rank == 0) std::fprintf(stderr, "%s\n", std::string(status.message()).c_str());
      if (!code && !status.ok() && rank == 0) PrintError(0, 1, std::string(status.message()));
      DestroyProcessGroup(group);  // all ranks are on their way here
      if (status.ok() && (std::fflush(stdout) != 0 || std::ferror(stdout) != 0)) {
        PrintError(rank, world_size, "standard output could not be written");
        return 1;
      }
      return code.value_or(status.ok() ? 0 : 1);
    }
    failure = monitor.Explain(std::string(status.message()), /*communication=*/false);
  } catch (const std::exception& e) {
    failure = monitor.Explain(e.what(), IsCommunicationError(e.what()));
  }
  // Pending collectives can't be joined any more: their threads may wait for a rank that is gone.
  PrintError(rank, world_size, failure);
  std::fflush(stdout);
  // Launchers take the rank that ends first for the cause. Rank 0 stays for a second, for the others to read its
  // reason.
  if (rank != 0 && absl::StrContains(failure, "another rank failed")) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1500));
  }
  _exit(1);
}

}  // namespace lockstep
