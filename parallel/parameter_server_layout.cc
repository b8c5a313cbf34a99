#include "lockstep/parallel/parameter_server_layout.h"

#include <absl/strings/str_cat.h>

#include <numeric>
#include <vector>

#include "lockstep/base/status_macros.h"

namespace lockstep {

std::string ParameterServerLayout::Name(int rank) const {
  return is_server(rank) ? absl::StrCat("server ", rank, " (rank ", rank, ")")
                         : absl::StrCat("worker ", worker_index(rank), " (rank ", rank, ")");
}

std::string ParameterServerLayout::ToString() const {
  return absl::StrCat(servers, servers == 1 ? " server, " : " servers, ",
                      mode == Mode::kSynchronous ? "synchronous" : "asynchronous",
                      placement == Placement::kSharded ? ", sharded" : ", replicated",
                      max_staleness ? absl::StrCat(", max_staleness ", *max_staleness) : "");
}

absl::Status ParameterServerLayout::Validate(int world_size) const {
  const auto wrong = [](const std::string& what) {
    return absl::InvalidArgumentError(absl::StrCat("parameter server: ", what));
  };
  if (servers < 1) return wrong(absl::StrCat("servers must be at least 1, not ", servers));
  if (num_workers(world_size) < 1) {
    return wrong(absl::StrCat("of ", world_size, " ranks ", servers,
                              " are servers, so that no worker is left; start at least ", servers + 1, " ranks"));
  }
  if (max_staleness && *max_staleness < 0) {
    return wrong(absl::StrCat("max_staleness must be at least 0, not ", *max_staleness));
  }
  if (max_staleness && mode == Mode::kSynchronous) {
    return wrong("max_staleness is for asynchronous mode; synchronous workers are never ahead of each other");
  }
  if (placement == Placement::kReplicated && mode == Mode::kAsynchronous && servers > 1) {
    return wrong("replicated servers would drift apart in asynchronous mode; take sharded ones");
  }
  return absl::OkStatus();
}

absl::StatusOr<ProcessGroupPtr> NewWorkerGroup(const ProcessGroupPtr& group, const ParameterServerLayout& layout,
                                               const ProcessGroupOptions& options) {
  LOCKSTEP_RETURN_IF_ERROR(layout.Validate(GetWorldSize(group)));
  std::vector<int> workers(layout.num_workers(GetWorldSize(group)));
  std::iota(workers.begin(), workers.end(), layout.servers);
  return NewSubGroup(group, workers, options);
}

}  // namespace lockstep
