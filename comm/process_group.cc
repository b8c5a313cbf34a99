#include "lockstep/comm/process_group.h"

#include <absl/status/status.h>
#include <absl/strings/str_cat.h>
#include <absl/strings/str_join.h>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include <algorithm>
#include <set>
#include <utility>

#include "lockstep/base/error_text.h"
#include "lockstep/base/status_macros.h"
#include "lockstep/comm/backend_choice.h"
#include "lockstep/comm/environment.h"
#include "lockstep/comm/flight_recorder.h"
#include "lockstep/comm/gloo/gloo.h"
#include "lockstep/comm/nccl/nccl.h"
#include "lockstep/comm/rendezvous.h"
#include "lockstep/comm/shm/shm_backend.h"
#include "lockstep/comm/watched_backend.h"

#include "lockstep/base/logging.h"

namespace lockstep {
namespace {

constexpr char kWorld[] = "world";

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
    const BackendType cpu_type = cpu->getBackendName() == "shm" ? BackendType::CUSTOM : BackendType::GLOO;
    group->setBackend(c10::kCPU, cpu_type, cpu);
    group->setDefaultBackend(cpu_type);
    if (choice.cuda == "gloo") {
      group->setBackend(c10::kCUDA, BackendType::GLOO, cpu_type == BackendType::GLOO ? cpu : WatchedGloo());
    }
    if (choice.cuda == "nccl") {
      LOCKSTEP_ASSIGN_OR_RETURN(BackendPtr nccl,
                                MakeNcclBackend(Prefixed("nccl"), rank_, world_size_, options_.timeout));
      group->setBackend(c10::kCUDA, BackendType::NCCL, Watched(std::move(nccl), "nccl"));
      group->setDefaultBackend(BackendType::NCCL);
    }
    group->setGroupName(name);  // in flight records
    if (options_.recorder) {
      options_.recorder->Joined(name + " over " + cpu->getBackendName());
      if (choice.cuda == "nccl") options_.recorder->Joined(name + " over nccl");
    }
    if (rank_ == 0 && (name == kWorld || VLOG_IS_ON(1))) {
      LOG(INFO) << "process group of " << world_size_ << " ranks: CPU tensors over " << cpu->getBackendName()
                << (choice.cuda.empty() ? "" : ", CUDA tensors over " + choice.cuda)
                << (why_not_shm_.empty() ? "" : "; no shared memory: " + why_not_shm_);
    }
    return group;
  }

 private:
  StorePtr Prefixed(const std::string& name) const { return c10::make_intrusive<c10d::PrefixStore>(name, store_); }

  absl::StatusOr<BackendPtr> CpuBackend(const std::string& choice) {
    if (choice == "gloo") return WatchedGloo();
    ShmBackendOptions options;
    options.timeout = options_.timeout;
    options.check_shapes = options_.check_collectives;
    options.recorder = options_.recorder;
    auto shm = MakeShmBackend(Prefixed("shm"), rank_, world_size_, options);
    // All ranks have the same answer.
    if (choice == "shm" || !absl::IsFailedPrecondition(shm.status())) return shm;
    why_not_shm_ = std::string(shm.status().message());
    return WatchedGloo();
  }

  BackendPtr Gloo(const std::string& name) const {
    return MakeGlooBackend(Prefixed(name), rank_, world_size_, options_.timeout,
                           IsLoopback(HostOf(store_)) ? "127.0.0.1" : "");
  }

  BackendPtr WatchedGloo() const { return Watched(Gloo("gloo"), "gloo"); }

  BackendPtr Watched(BackendPtr backend, const std::string& name) const {
    // The comparison itself goes over a Gloo of its own, on which nothing hangs when the collectives differ.
    if (options_.check_collectives) backend = CheckCollectives(backend, Gloo("check_" + name));
    return WatchBackend(std::move(backend), Prefixed("watch_" + name), options_.timeout, options_.recorder);
  }

  const StorePtr store_;
  const int rank_, world_size_;
  const ProcessGroupOptions& options_;
  std::string why_not_shm_;
};

absl::StatusOr<ProcessGroupPtr> MakeGroup(const StorePtr& store, int rank, int world_size,
                                          const ProcessGroupOptions& options, const std::string& name) {
  LOCKSTEP_ASSIGN_OR_RETURN(const BackendChoice choice, ParseBackend(options.backend, options.cuda));
  // Who has come, for the error when somebody does not.
  const auto here = c10::make_intrusive<c10d::PrefixStore>("here", store);
  absl::StatusOr<ProcessGroupPtr> group = absl::UnknownError("");
  try {
    here->set(std::to_string(rank), std::vector<uint8_t>{1});
    group = GroupBuilder(store, rank, world_size, options).Build(choice, name);
  } catch (const std::exception& e) {
    group = absl::UnavailableError(FirstLine(e.what()));
  }
  if (!absl::IsUnavailable(group.status())) return group;
  std::string missing;
  try {
    for (int r = 0; r < world_size; ++r) {
      if (!here->check({std::to_string(r)})) absl::StrAppend(&missing, missing.empty() ? "" : ", ", r);
    }
  } catch (const std::exception&) {
    missing.clear();  // the store is gone too
  }
  if (!missing.empty()) {
    return absl::UnavailableError(
        absl::StrCat("process group: of ", world_size, " ranks these did not come: ", missing));
  }
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
                   absl::StrCat(parent->hasBackends() ? parent->getGroupName() : kWorld, "/", list, times > 1 ? absl::StrCat("#", times) : ""));
}

void DestroyProcessGroup(ProcessGroupPtr& group) {
  if (!group) return;
  const ProcessGroupPtr last = std::exchange(group, nullptr);
  Barrier(last);
}

}  // namespace lockstep
