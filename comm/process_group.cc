#include "lockstep/comm/process_group.h"

#include <absl/status/status.h>
#include <absl/strings/str_cat.h>
#include <absl/strings/str_join.h>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include <algorithm>
#include <map>
#include <set>
#include <utility>

#include "lockstep/base/error_text.h"
#include "lockstep/base/host_name.h"
#include "lockstep/base/status_macros.h"
#include "lockstep/comm/backend_choice.h"
#include "lockstep/comm/environment.h"
#include "lockstep/comm/flight_recorder.h"
#include "lockstep/comm/gloo/gloo.h"
#include "lockstep/comm/hierarchical/hierarchical_backend.h"
#include "lockstep/comm/hosts.h"
#include "lockstep/comm/internal/quiet_c10.h"
#include "lockstep/comm/liveness.h"
#include "lockstep/comm/nccl/nccl.h"
#include "lockstep/comm/network_address.h"
#include "lockstep/comm/rendezvous.h"
#include "lockstep/comm/shm/shm_backend.h"
#include "lockstep/comm/watched_backend.h"

#include "lockstep/base/logging.h"

namespace lockstep {
namespace {

constexpr char kWorld[] = "world";

constexpr std::chrono::seconds kSayAfter(5);  // before the log says who is awaited

using BackendType = c10d::ProcessGroup::BackendType;
using BackendPtr = c10::intrusive_ptr<c10d::Backend>;
using StorePtr = c10::intrusive_ptr<c10d::Store>;

/// Where the store is, as the user gave it; empty when it is no TCP store.
std::string HostOf(StorePtr store) {
  while (auto* prefix = dynamic_cast<c10d::PrefixStore*>(store.get())) store = prefix->getUnderlyingStore();
  auto* tcp = dynamic_cast<c10d::TCPStore*>(store.get());
  return tcp == nullptr ? "" : tcp->getHost();
}

/// Makes a group and its backends.
class GroupBuilder {
 public:
  GroupBuilder(StorePtr store, int rank, int world_size, const ProcessGroupOptions& options)
      : store_(std::move(store)), rank_(rank), world_size_(world_size), options_(options) {}

  absl::StatusOr<ProcessGroupPtr> Build(const BackendChoice& choice, const std::string& name) {
    auto group = c10::make_intrusive<c10d::ProcessGroup>(store_, rank_, world_size_);
    LOCKSTEP_ASSIGN_OR_RETURN(const BackendPtr cpu, CpuBackend(choice.cpu));
    const BackendType cpu_type = cpu->getBackendName() == "gloo" ? BackendType::GLOO : BackendType::CUSTOM;
    group->setBackend(c10::kCPU, cpu_type, cpu);
    group->setDefaultBackend(cpu_type);
    if (choice.cuda == "gloo") {
      BackendPtr gloo = cpu;
      if (cpu_type != BackendType::GLOO) {
        LOCKSTEP_ASSIGN_OR_RETURN(gloo, WatchedGloo());
      }
      group->setBackend(c10::kCUDA, BackendType::GLOO, gloo);
    }
    if (choice.cuda == "nccl") {
      LOCKSTEP_ASSIGN_OR_RETURN(BackendPtr nccl,
                                MakeNcclBackend(Prefixed("nccl"), rank_, world_size_, options_.timeout));
      LOCKSTEP_ASSIGN_OR_RETURN(nccl, Watched(std::move(nccl), "nccl", Monitor("nccl")));
      group->setBackend(c10::kCUDA, BackendType::NCCL, nccl);
      group->setDefaultBackend(BackendType::NCCL);
    }
    group->setGroupName(name);  // in flight records
    if (options_.recorder) {
      options_.recorder->Joined(name + " over " + cpu->getBackendName());
      if (choice.cuda == "nccl") options_.recorder->Joined(name + " over nccl");
    }
    if (rank_ == 0 && (name == kWorld || VLOG_IS_ON(1))) {
      LOG(INFO) << "process group of " << world_size_ << " ranks: CPU tensors over " << cpu->getBackendName()
                << (choice.cuda.empty() ? "" : ", CUDA tensors over " + choice.cuda) << remark_;
    }
    return group;
  }

 private:
  StorePtr Prefixed(const std::string& name) const { return c10::make_intrusive<c10d::PrefixStore>(name, store_); }

  // All ranks take the same way through these.

  absl::StatusOr<BackendPtr> CpuBackend(const std::string& choice) {
    if (choice == "gloo") return WatchedGloo();
    if (choice != "hierarchical") {
      ShmBackendOptions options;
      options.timeout = options_.timeout;
      options.check_shapes = options_.check_collectives;
      options.recorder = options_.recorder;
      auto shm = MakeShmBackend(Prefixed("shm"), rank_, world_size_, options);
      if (choice == "shm" || !absl::IsFailedPrecondition(shm.status())) return shm;
      remark_ = absl::StrCat("; no shared memory: ", std::string(shm.status().message()));
    }
    LOCKSTEP_ASSIGN_OR_RETURN(const Hosts hosts, FindHosts(Prefixed("hosts"), rank_, world_size_, options_.timeout));
    if (choice == "auto" && hosts.count() == world_size_) return WatchedGloo();
    auto hierarchical = Hierarchical(hosts);
    if (choice == "auto" && absl::IsFailedPrecondition(hierarchical.status())) {
      remark_ = absl::StrCat("; no shared memory: ", std::string(hierarchical.status().message()));
      return WatchedGloo();
    }
    remark_ = absl::StrCat("; ", hosts.count(), " hosts, ranks ", hosts.Text());
    return hierarchical;
  }

  absl::StatusOr<BackendPtr> Hierarchical(const Hosts& hosts) {
    LOCKSTEP_RETURN_IF_ERROR(FindNetwork());
    HierarchicalBackendOptions options;
    options.timeout = options_.timeout;
    options.check_shapes = options_.check_collectives;
    options.monitor = Monitor("hierarchical");
    options.make_network_backend = [&](const StorePtr& store, int rank, int world_size) {
      return MakeGlooBackend(store, rank, world_size, options_.timeout, address_, interfaces_);
    };
    LOCKSTEP_ASSIGN_OR_RETURN(BackendPtr backend,
                              MakeHierarchicalBackend(Prefixed("hierarchical"), rank_, hosts, options));
    return Watched(std::move(backend), "hierarchical", options.monitor);
  }

  absl::StatusOr<BackendPtr> Gloo(const std::string& name) {
    LOCKSTEP_RETURN_IF_ERROR(FindNetwork());
    return MakeGlooBackend(Prefixed(name), rank_, world_size_, options_.timeout, address_, interfaces_);
  }

  absl::StatusOr<BackendPtr> WatchedGloo() {
    LOCKSTEP_ASSIGN_OR_RETURN(BackendPtr gloo, Gloo("gloo"));
    return Watched(std::move(gloo), "gloo", Monitor("gloo"));
  }

  std::shared_ptr<LivenessMonitor> Monitor(const std::string& name) const {
    return std::make_shared<LivenessMonitor>(Prefixed("watch_" + name), rank_, world_size_);
  }

  absl::StatusOr<BackendPtr> Watched(BackendPtr backend, const std::string& name,
                                     std::shared_ptr<LivenessMonitor> monitor) {
    // The comparison itself goes over a Gloo of its own, on which nothing hangs when the collectives differ.
    if (options_.check_collectives) {
      LOCKSTEP_ASSIGN_OR_RETURN(const BackendPtr gloo, Gloo("check_" + name));
      backend = CheckCollectives(backend, gloo);
    }
    return WatchBackend(std::move(backend), std::move(monitor), options_.timeout, options_.recorder);
  }

  /// Where this rank is to be reached: once, when something first goes over the network.
  absl::Status FindNetwork() {
    if (!address_.empty() || !interfaces_.empty()) return absl::OkStatus();
    LOCKSTEP_ASSIGN_OR_RETURN(interfaces_, ChosenInterfaces());
    std::string master = HostOf(store_);
    // Small systems know no name for the loopback interface.
    if (IsLoopback(master)) master = master.find(':') == std::string::npos ? "127.0.0.1" : "::1";
    LOCKSTEP_ASSIGN_OR_RETURN(
        address_, AddressForRanks(*Prefixed("network"), rank_, world_size_, master, interfaces_, options_.timeout));
    return absl::OkStatus();
  }

  const StorePtr store_;
  const int rank_, world_size_;
  const ProcessGroupOptions& options_;
  std::vector<std::string> interfaces_;
  std::string address_;
  std::string remark_;  // for the log
};

/// "of 4 ranks these did not come: 2, 3; here are 0, 1 on alpha", from who has written its host's name under its rank;
/// empty when all have, or nothing is known.
std::string WhoIsMissing(c10d::Store& here, int world_size) {
  std::string missing;
  std::map<std::string, std::vector<int>> by_host;
  try {
    for (int r = 0; r < world_size; ++r) {
      const std::string key = std::to_string(r);
      if (here.check({key})) {
        by_host[here.get_to_str(key)].push_back(r);
      } else {
        absl::StrAppend(&missing, missing.empty() ? "" : ", ", r);
      }
    }
  } catch (const std::exception&) {
    return "";  // the store is gone too
  }
  if (missing.empty()) return "";
  std::vector<std::string> present;
  for (const auto& [host, ranks] : by_host) present.push_back(absl::StrCat(absl::StrJoin(ranks, ", "), " on ", host));
  return absl::StrCat("of ", world_size, " ranks these did not come: ", missing, "; here are ",
                      absl::StrJoin(present, "; "));
}

/// Rank 0 says who has not come so far: it may be a mistake, which shall not have to wait for the end to be found.
void SayWhoIsAwaited(c10d::Store& here, int world_size, std::chrono::milliseconds timeout) {
  if (timeout <= kSayAfter) return;
  std::vector<std::string> all;
  for (int r = 0; r < world_size; ++r) all.push_back(std::to_string(r));
  const QuietC10 quiet;
  try {
    here.wait(all, kSayAfter);
  } catch (const std::exception&) {
    const std::string missing = WhoIsMissing(here, world_size);
    if (missing.empty()) return;
    LOG(INFO) << "process group: so far " << missing << "; waiting for another "
              << std::chrono::duration_cast<std::chrono::seconds>(timeout - kSayAfter).count() << " s";
  }
}

/// When a group could not be made: rank 0, whose end may be that of the store, gives the others time to find out why.
void LeaveAfterTheOthers(c10d::Store& here, int rank, int world_size) {
  const auto left = [](int r) { return absl::StrCat("left/", r); };
  const QuietC10 quiet;
  try {
    here.set(left(rank), std::vector<uint8_t>{1});
    std::vector<std::string> others;
    for (int r = 1; r < world_size; ++r) others.push_back(left(r));
    if (rank == 0) here.wait(others, std::chrono::seconds(2));
  } catch (const std::exception&) {
    // They did not come, or the store is gone.
  }
}

absl::StatusOr<ProcessGroupPtr> MakeGroup(const StorePtr& store, int rank, int world_size,
                                          const ProcessGroupOptions& options, const std::string& name) {
  LOCKSTEP_ASSIGN_OR_RETURN(const BackendChoice choice, ParseBackend(options.backend, options.cuda));
  // Who has come, for the error when somebody does not.
  const auto here = c10::make_intrusive<c10d::PrefixStore>("here", store);
  absl::StatusOr<ProcessGroupPtr> group = absl::UnknownError("");
  try {
    const std::string known = HostName(), host = known.empty() ? "?" : known;
    here->set(std::to_string(rank), std::vector<uint8_t>(host.begin(), host.end()));
    if (rank == 0) SayWhoIsAwaited(*here, world_size, options.timeout);
    group = GroupBuilder(store, rank, world_size, options).Build(choice, name);
  } catch (const std::exception& e) {
    group = absl::UnavailableError(FirstLine(e.what()));
  }
  if (group.ok()) return group;
  const std::string missing = absl::IsUnavailable(group.status()) ? WhoIsMissing(*here, world_size) : "";
  LeaveAfterTheOthers(*here, rank, world_size);
  if (!absl::IsUnavailable(group.status())) return group;
  if (!missing.empty()) return absl::UnavailableError("process group: " + missing);
  return absl::UnavailableError(absl::StrCat("process group: rank ", rank, " of ", world_size,
                                             " could not join: ", std::string(group.status().message())));
}

}  // namespace

absl::StatusOr<ProcessGroupPtr> InitProcessGroup(const ProcessGroupOptions& options) {
  LOCKSTEP_RETURN_IF_ERROR(ValidateBackend(options.backend, options.cuda));
  if (options.store) {
    if (options.world_size < 1 || options.rank < 0 || options.rank >= options.world_size) {
      return absl::InvalidArgumentError(absl::StrCat("process group: with a store of your own, rank (", options.rank,
                                                     ") and world_size (", options.world_size, ") must be given"));
    }
    if (options.world_size == 1) return ProcessGroupPtr();
    return MakeGroup(options.store, options.rank, options.world_size, options, kWorld);
  }
  int world_size = options.world_size;
  if (world_size < 0 && options.init_method == "env://") {
    LOCKSTEP_ASSIGN_OR_RETURN(DistributedEnvironment env, ReadEnvironment());
    world_size = env.world_size;
  }
  if (world_size == 1) return ProcessGroupPtr();
  LOCKSTEP_ASSIGN_OR_RETURN(const Rendezvous place,
                            OpenRendezvous(options.init_method, options.rank, options.world_size, options.timeout));
  if (place.world_size == 1) return ProcessGroupPtr();
  return MakeGroup(place.store, place.rank, place.world_size, options, kWorld);
}

absl::StatusOr<ProcessGroupPtr> NewSubGroup(const ProcessGroupPtr& parent, const std::vector<int>& ranks,
                                            const ProcessGroupOptions& options) {
  const std::string list = absl::StrJoin(ranks, ",");
  const auto wrong = [&](const std::string& what) {
    return absl::InvalidArgumentError(absl::StrCat("sub-group of ranks ", list, ": ", what));
  };
  LOCKSTEP_RETURN_IF_ERROR(ValidateBackend(options.backend, options.cuda));
  const int world = GetWorldSize(parent), rank = GetRank(parent);
  for (int r : ranks) {
    if (r < 0 || r >= world) return wrong(absl::StrCat("rank ", r, " in a group of ", world));
  }
  if (std::set<int>(ranks.begin(), ranks.end()).size() != ranks.size()) return wrong("a rank is there twice");
  const auto mine = std::find(ranks.begin(), ranks.end(), rank);
  if (mine == ranks.end()) return wrong(absl::StrCat("rank ", rank, " is not in it"));
  if (ranks.size() == 1) return ProcessGroupPtr();
  int64_t times = 0;
  try {  // how often this rank has made a group of these ranks, which is the same for all of them
    times = parent->getStore()->add(absl::StrCat("sub_groups/", list, "/", rank), 1);
  } catch (const std::exception& e) {
    return absl::UnavailableError(absl::StrCat("sub-group of ranks ", list, ": ", FirstLine(e.what())));
  }
  const auto store =
      c10::make_intrusive<c10d::PrefixStore>(absl::StrCat("sub_group/", list, "/", times), parent->getStore());
  return MakeGroup(store, static_cast<int>(mine - ranks.begin()), static_cast<int>(ranks.size()), options,
                   absl::StrCat(parent->hasBackends() ? parent->getGroupName() : kWorld, "/", list,
                                times > 1 ? absl::StrCat("#", times) : ""));
}

void DestroyProcessGroup(ProcessGroupPtr& group) {
  if (!group) return;
  const ProcessGroupPtr last = std::exchange(group, nullptr);
  Barrier(last);
}

}  // namespace lockstep
