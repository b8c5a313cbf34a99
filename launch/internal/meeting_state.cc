#include "lockstep/launch/internal/meeting_state.h"

#include <absl/strings/str_cat.h>

#include <algorithm>
#include <map>
#include <utility>

#include "lockstep/comm/environment.h"

namespace lockstep {

using nlohmann::json;
namespace {

/// A name that means another host wherever it is read; some give a server's "all addresses" as its own.
bool MeansItself(const std::string& host) { return IsLoopback(host) || host == "0.0.0.0" || host == "::"; }

}  // namespace

MeetingState::MeetingState(const MeetingOptions& options, std::string launch_id, int max_restarts, Time now, Send send)
    : options_(options), launch_id_(std::move(launch_id)), max_restarts_(max_restarts), send_(std::move(send)) {
  Gather(now);
}

MeetingState::Member* MeetingState::Find(int id) {
  for (Member& member : members_) {
    if (member.id == id) return &member;
  }
  return nullptr;
}

void MeetingState::Heard(int id, const json& message, Time now) {
  const std::string kind = message["kind"];
  Member* member = Find(id);
  if (kind == "join") {
    if (member != nullptr) return;
    Member joined;
    joined.id = id;
    joined.host = message.value("host", "");
    const std::string refusal = Join(joined, message, now);
    if (!refusal.empty()) Refuse(joined, refusal);
    return;
  }
  if (member != nullptr) LivesOn(*member);
  if (member != nullptr && kind == "failed" && member->running) {
    End end;
    end.code = message.value("code", 1);
    end.text = message.value("text", "");
    end.killed = message.value("killed", false);
    if (phase_ == Phase::kRunning) {
      Stop(end, /*soon=*/true);
    } else if (phase_ == Phase::kStopping && end.killed && !end_.killed && !end_.final && !end_.regroup) {
      end_ = end;  // the others' errors were quicker on their way, but nobody is killed by an error elsewhere
    }
  } else if (member != nullptr && kind == "ended" && member->running) {
    member->running = false;
    member->port = message.value("port", member->port);
    some_ended_ = true;
    const int code = message.value("code", 1);
    const bool interrupted = message.value("interrupted", false);
    if (interrupted || message.value("stopped", false)) {
      End end;
      end.code = code;
      end.final = true;
      if (interrupted) {
        end.text = absl::StrCat("lockstep: the launcher of host ", member->host, " was told to end by a signal\n");
      }
      if (phase_ == Phase::kRunning) {
        Stop(end, /*soon=*/false);
      } else if (interrupted && !end_.final) {
        // What they were ended for would have gone on, but not after this.
        if (!end_.regroup) end.text = end_.text + end.text;
        end_ = end;
      }
    } else if (code != 0) {
      End end;
      end.code = code;
      end.text = absl::StrCat("lockstep: the ranks of host ", member->host, " failed with code ", code, "\n");
      if (phase_ == Phase::kRunning) Stop(end, /*soon=*/true);
      end_.final |= !message.value("may_restart", false) && !end_.regroup;
    }
    RoundMayBeOver(now);
  }
}

/// Returns why the member is refused, empty if it isn't.
std::string MeetingState::Join(Member member, const json& message, Time now) {
  if (message.value("id", "") != options_.id) {
    return absl::StrCat("the run that meets here has --rdzv_id=", options_.id,
                        ", and this launcher --rdzv_id=", message.value("id", ""));
  }
  if (message.value("elastic", false) != options_.elastic) {
    return absl::StrCat("the run that meets here has --rdzv_backend=", options_.elastic ? "c10d" : "static");
  }
  if (message.value("max_nodes", 0) != options_.max_nodes || message.value("min_nodes", 0) != options_.min_nodes) {
    return absl::StrCat("the run that meets here has --nnodes=", options_.min_nodes, ":", options_.max_nodes,
                        ", and this launcher --nnodes=", message.value("min_nodes", 0), ":",
                        message.value("max_nodes", 0));
  }
  if (over()) return "the run that met here is over";
  member.role = message.value("role", "");
  member.address = message.value("address", "");
  member.reached = message.value("reached", "");
  member.ranks = message.value("ranks", 1);
  member.port = message.value("port", 0);
  member.here = message.value("here", false);
  if (!options_.elastic) {
    member.node_rank = message.value("node_rank", -1);
    for (const Member& other : members_) {
      if (other.node_rank == member.node_rank) {
        claimants_.push_back(member);  // until the other says something, or has been silent for too long
        return "";
      }
    }
  }
  Admit(member, now);
  return "";
}

/// Who has a number that another one claims.
void MeetingState::LivesOn(const Member& member) {
  for (const Member& claimant : claimants_) {
    if (claimant.node_rank == member.node_rank) {
      Refuse(claimant, absl::StrCat("--node_rank=", member.node_rank, " is taken by host ", member.host));
    }
  }
  claimants_.remove_if([&](const Member& claimant) { return claimant.node_rank == member.node_rank; });
}

/// The host of the meeting is told as well: somebody may wait there for a launcher that was refused.
void MeetingState::Refuse(const Member& who, const std::string& why) {
  send_(who.id, {{"kind", "refused"}, {"text", why}});
  absl::StrAppend(&unheard_, "lockstep: the launcher of host ", who.host, " was refused: ", why, "\n");
  for (const Member& member : members_) SendUnheard(member);
}

/// The meeting listens before its own host's launcher has taken its seat, so others may be quicker.
void MeetingState::SendUnheard(const Member& member) {
  if (member.here && !unheard_.empty()) send_(member.id, {{"kind", "note"}, {"text", std::exchange(unheard_, "")}});
}

void MeetingState::Admit(const Member& member, Time now) {
  members_.push_back(member);
  SendUnheard(member);
  if (phase_ == Phase::kRunning) {
    const auto running = std::count_if(members_.begin(), members_.end(), [](const Member& m) { return m.in_round; });
    if (running < options_.max_nodes && !some_ended_) {
      End end;
      end.regroup = true;
      end.text = absl::StrCat("lockstep: host ", member.host, " has come\n");
      Stop(end, /*soon=*/false);
    }
  }
  MayBegin(now);
}

void MeetingState::Gone(int id, const std::string& how, Time now) {
  claimants_.remove_if([&](const Member& claimant) { return claimant.id == id; });
  Member* member = Find(id);
  if (member == nullptr) return;
  const Member gone = *member;
  members_.remove_if([&](const Member& m) { return m.id == id; });
  if (gone.running) {
    lost_ = absl::StrCat("host ", gone.host, " (node ", gone.node_rank, ")");
    End end;
    end.code = 1;
    end.killed = true;  // the cause of all that follows
    end.text = absl::StrCat("lockstep: ", lost_, " has gone: ", how);
    const bool may_go = options_.expendable_from >= 0 && gone.first_rank >= options_.expendable_from;
    if (phase_ == Phase::kRunning && may_go) {
      for (const Member& other : members_) {
        if (other.running) send_(other.id, {{"kind", "note"}, {"text", end.text + "; the others go on\n"}});
      }
    } else if (phase_ == Phase::kRunning) {
      end.text += "\n";
      Stop(end, /*soon=*/true);
    }
  }
  RoundMayBeOver(now);
  const auto heir = std::find_if(claimants_.begin(), claimants_.end(),
                                 [&](const Member& claimant) { return claimant.node_rank == gone.node_rank; });
  if (heir == claimants_.end()) {
    MayBegin(now);
    return;
  }
  const Member next = *heir;
  claimants_.erase(heir);
  Admit(next, now);
}

void MeetingState::Close(const std::string& why) {
  if (!over()) Finish(1, absl::StrCat("lockstep: ", why, "\n"));
}

MeetingState::Time MeetingState::Next() const {
  if (phase_ != Phase::kGathering) return Time::max();
  return last_call_ ? std::min(join_deadline_, *last_call_) : join_deadline_;
}

void MeetingState::Tick(Time now) { MayBegin(now); }

void MeetingState::Gather(Time now) {
  phase_ = Phase::kGathering;
  join_deadline_ = now + options_.join_timeout;
  last_call_.reset();
}

void MeetingState::MayBegin(Time now) {
  if (phase_ != Phase::kGathering) return;
  const int count = static_cast<int>(members_.size());
  if (count < options_.min_nodes) {
    last_call_.reset();
    if (now >= join_deadline_) Finish(1, Missing());
    return;
  }
  if (!last_call_) last_call_ = now + options_.last_call_timeout;
  if (count >= options_.max_nodes || now >= *last_call_) Begin();
}

std::string MeetingState::Missing() const {
  std::string text = absl::StrCat("lockstep: of ", options_.min_nodes, " hosts ", members_.size(), " came in time");
  if (!options_.elastic) {
    std::string missing;
    for (int rank = 0; rank < options_.max_nodes; ++rank) {
      if (std::none_of(members_.begin(), members_.end(), [&](const Member& m) { return m.node_rank == rank; })) {
        absl::StrAppend(&missing, missing.empty() ? "" : ", ", rank);
      }
    }
    absl::StrAppend(&text, "; missing: --node_rank ", missing);
  }
  for (const Member& member : members_) {
    absl::StrAppend(&text, &member == &members_.front() ? "; here: " : ", ", member.host);
  }
  if (!lost_.empty()) absl::StrAppend(&text, "; ", lost_, " had gone");
  return text + "\n";
}

/// Of node 0. Some give its own launcher a name that means itself, as Kubernetes' operator does; others must not be
/// told that, and rank 0 must not listen there alone.
std::string MeetingState::MasterAddress(const std::vector<Member*>& nodes) {
  const Member& master = *nodes.front();
  if (!master.here || !MeansItself(master.address)) return master.address;
  for (const Member* node : nodes) {
    if (!node->here && !MeansItself(node->reached)) return node->reached;
  }
  return master.address;
}

void MeetingState::Begin() {
  // The host of the meeting first: it stays, and the others have reached it. Then as they came, or by their numbers.
  std::vector<Member*> nodes;
  for (Member& member : members_) nodes.push_back(&member);
  std::stable_sort(nodes.begin(), nodes.end(), [&](const Member* a, const Member* b) {
    return options_.elastic ? a->here > b->here : a->node_rank < b->node_rank;
  });
  if (nodes.size() > static_cast<size_t>(options_.max_nodes)) nodes.resize(static_cast<size_t>(options_.max_nodes));
  std::map<std::string, int> of_role;
  int world = 0;
  std::string hosts;
  for (const Member* node : nodes) {
    world += node->ranks;
    of_role[node->role] += node->ranks;
    absl::StrAppend(&hosts, hosts.empty() ? "" : ", ", node->host, " (", node->ranks, ")");
  }
  const std::string master_addr = MasterAddress(nodes);
  std::map<std::string, int> seen_of_role;
  int first = 0;
  for (size_t i = 0; i < nodes.size(); ++i) {
    Member& node = *nodes[i];
    node.node_rank = static_cast<int>(i);
    node.first_rank = first;
    node.running = node.in_round = true;
    int& first_role_rank = seen_of_role[node.role];
    send_(node.id, {{"kind", "round"},
                    {"node_rank", i},
                    {"num_nodes", nodes.size()},
                    {"first_rank", first},
                    {"world_size", world},
                    {"first_role_rank", first_role_rank},
                    {"role_world_size", of_role[node.role]},
                    {"master_addr", master_addr},
                    {"master_port", nodes[0]->port},
                    {"restarts", restarts_},
                    {"regroups", regroups_},
                    {"launch_id", launch_id_},
                    {"hosts", hosts}});
    first += node.ranks;
    first_role_rank += node.ranks;
  }
  some_ended_ = false;
  phase_ = Phase::kRunning;
}

void MeetingState::Stop(const End& end, bool soon) {
  phase_ = Phase::kStopping;
  end_ = end;
  for (const Member& member : members_) {
    if (member.running) send_(member.id, {{"kind", "stop"}, {"soon", soon}, {"text", end.text}});
  }
}

void MeetingState::RoundMayBeOver(Time now) {
  if (phase_ != Phase::kRunning && phase_ != Phase::kStopping) return;
  if (std::any_of(members_.begin(), members_.end(), [](const Member& m) { return m.running; })) return;
  if (phase_ == Phase::kRunning) {
    Finish(0, "");  // everybody has ended well
    return;
  }
  const bool again = end_.regroup || (!end_.final && restarts_ < max_restarts_);
  if (!again) {
    Finish(end_.code, end_.text);
    return;
  }
  ++(end_.regroup ? regroups_ : restarts_);
  for (Member& member : members_) {
    member.in_round = false;
    if (options_.elastic) member.node_rank = -1;
    send_(member.id, {{"kind", "again"}, {"text", end_.text}, {"restarts", restarts_}});
  }
  Gather(now);
  MayBegin(now);
}

void MeetingState::Finish(int code, const std::string& text) {
  phase_ = Phase::kOver;
  for (const auto* list : {&members_, &claimants_}) {
    for (const Member& member : *list) send_(member.id, {{"kind", "finish"}, {"code", code}, {"text", text}});
  }
  claimants_.clear();
}

}  // namespace lockstep
