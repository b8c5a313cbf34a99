#include "lockstep/launch/rank_main.h"

#include <unistd.h>

#include <cstdio>
#include <memory>
#include <string>

#include "lockstep/base/error_text.h"
#include "lockstep/comm/agree.h"
#include "lockstep/comm/environment.h"
#include "lockstep/comm/liveness.h"

namespace lockstep {
namespace {

void PrintError(int rank, int world_size, const std::string& message) {
  const std::string who = world_size > 1 ? "rank " + std::to_string(rank) + ": " : "";
  std::fprintf(stderr, "%serror: %s\n", who.c_str(), message.c_str());
  std::fflush(stderr);
}

}  // namespace

int RankMain(const ProcessGroupOptions& options, const std::function<absl::Status(const ProcessGroupPtr&)>& body) {
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
  std::string failure;
  {
    LivenessMonitor monitor(group ? group->getStore() : nullptr, rank, world_size);
    try {
      const absl::Status status = body(group);
      if (status.ok()) {
        DestroyProcessGroup(group);
        return 0;
      }
      if (IsAgreed(status)) {
        if (rank == 0) PrintError(0, 1, std::string(status.message()));
        DestroyProcessGroup(group);  // all ranks are on their way here
        return 1;
      }
      failure = monitor.Explain(std::string(status.message()), /*communication=*/false);
    } catch (const std::exception& e) {
      failure = monitor.Explain(e.what(), IsCommunicationError(e.what()));
    }
  }
  PrintError(rank, world_size, failure);
  // Pending collectives can't be joined any more: their threads may wait for a rank that is gone.
  std::fflush(stdout);
  _exit(1);
}

}  // namespace lockstep
