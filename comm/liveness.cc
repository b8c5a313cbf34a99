#include "lockstep/comm/liveness.h"

#include <c10/util/Exception.h>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <fstream>
#include <future>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "lockstep/base/error_text.h"
#include "lockstep/comm/heart.h"

namespace lockstep {
namespace {

using Clock = std::chrono::steady_clock;

constexpr auto kPeriod = std::chrono::milliseconds(250);
constexpr auto kPatience = std::chrono::milliseconds(2000);
constexpr char kFirstFailure[] = "first_failure";

constexpr auto kDeadAfter = std::chrono::seconds(6);

/// Looks without a word from the store.
constexpr int kSilentLooks = 16;

std::string BeatKey(int rank) { return "beat/" + std::to_string(rank); }
std::string ProgressKey(int rank) { return "progress/" + std::to_string(rank); }
std::string ProcessKey(int rank) { return "process/" + std::to_string(rank); }

std::string FirstLineOf(const std::string& path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return line;
}

/// What processes that see each other's numbers have in common.
std::string PlaceOfProcesses() {
  char name_space[64] = {};
  const ssize_t length = readlink("/proc/self/ns/pid", name_space, sizeof(name_space) - 1);
  return FirstLineOf("/proc/sys/kernel/random/boot_id") + (length > 0 ? name_space : "");
}

std::string Listed(const std::vector<int>& ranks) {
  std::string text;
  for (int rank : ranks) text += (text.empty() ? "" : ", ") + std::to_string(rank);
  return text;
}

/// Whether the process, as its rank described it, is here and stopped by a signal or a debugger.
bool IsStopped(const std::string& process) {
  const size_t space = process.rfind(' ');
  if (space == std::string::npos || process.substr(0, space) != PlaceOfProcesses()) return false;
  const std::string status = FirstLineOf("/proc/" + process.substr(space + 1) + "/stat");  // "12 (name) T …"
  const size_t end = status.rfind(')');
  return end != std::string::npos && end + 2 < status.size() && (status[end + 2] == 'T' || status[end + 2] == 't');
}

}  // namespace

struct LivenessMonitor::State {
  c10::intrusive_ptr<c10d::Store> store;  // a connection of its own
  int rank = 0;
  int world_size = 1;
  std::mutex store_mutex;  // one thread at a time on the connection
  std::mutex mutex;
  uint64_t progress = 0;
  bool introduced = false;  // the heart's thread alone
  uint64_t published = 0;   // the heart's thread alone
  uint64_t answers = 0;     // of the store, to whole rounds
  std::string holder;       // the process of rank 0, which may hold the store; as soon as it is known
  int watchers = 0;
  bool fresh = false;  // they have just begun to watch
  struct Seen {
    int64_t count = -1;
    Clock::time_point since;
  };
  std::vector<Seen> seen;  // by rank, while somebody watches; the heart's thread alone
  std::vector<int> gone;

  /// The heart's thread.
  void Beat() {
    std::unique_lock<std::mutex> lock(mutex);
    const uint64_t done = progress;
    const bool publish = done != published, watch = watchers > 0;
    if (std::exchange(fresh, false)) seen.assign(world_size, Seen());
    lock.unlock();
    std::vector<int64_t> counts;
    std::string first_process;
    bool answered = false;
    try {
      const std::lock_guard<std::mutex> one(store_mutex);
      if (!introduced) Set(ProcessKey(rank), PlaceOfProcesses() + " " + std::to_string(getpid()));
      introduced = true;
      if (publish) Set(ProgressKey(rank), std::to_string(done));
      published = done;
      store->add(BeatKey(rank), 1);
      for (int r = 0; watch && r < world_size; ++r) counts.push_back(store->add(BeatKey(r), 0));
      if (holder.empty() && store->check({ProcessKey(0)})) first_process = store->get_to_str(ProcessKey(0));
      answered = true;
    } catch (const std::exception&) {
      // The store is slow, or gone because its rank is; in the latter case the next collective says so.
    }
    const std::vector<int> silent = watch && counts.size() == seen.size() ? Silent(counts) : std::vector<int>();
    lock.lock();
    if (watch) gone = silent;
    if (answered) ++answers;
    if (!first_process.empty()) holder = first_process;
  }

  void Set(const std::string& key, const std::string& value) {
    store->set(key, std::vector<uint8_t>(value.begin(), value.end()));
  }

  /// The heart's thread: who has not counted for long, and is not just stopped.
  std::vector<int> Silent(const std::vector<int64_t>& counts) {
    std::vector<int> silent;
    const auto now = Clock::now();
    for (int r = 0; r < world_size; ++r) {
      if (counts[r] != seen[r].count) seen[r] = {counts[r], now};
      if (r == rank || now - seen[r].since < kDeadAfter) continue;
      std::string process;
      try {
        const std::lock_guard<std::mutex> one(store_mutex);
        if (store->check({ProcessKey(r)})) process = store->get_to_str(ProcessKey(r));
      } catch (const std::exception&) {
      }
      if (!IsStopped(process)) silent.push_back(r);
    }
    return silent;
  }

  /// Any thread: how often the store has answered, and whether its silence may be that of a process that is stopped.
  uint64_t Answers() {
    const std::lock_guard<std::mutex> lock(mutex);
    return answers;
  }
  bool HolderIsStopped() {
    std::unique_lock<std::mutex> lock(mutex);
    const std::string process = holder;
    lock.unlock();
    return IsStopped(process);
  }

  /// Every rank's count, and what the rank that failed first has said.
  std::string Read(std::vector<int64_t>& counts) {
    const std::lock_guard<std::mutex> one(store_mutex);
    counts.resize(world_size);
    for (int r = 0; r < world_size; ++r) counts[r] = store->add(BeatKey(r), 0);
    return store->check({kFirstFailure}) ? store->get_to_str(kFirstFailure) : std::string();
  }

  void LeaveReason(const std::string& text) {
    const std::lock_guard<std::mutex> one(store_mutex);
    store->compareSet(kFirstFailure, "", text);
  }

  std::string Explain(const std::string& reason, bool communication) {
    if (!communication) {
      LeaveReason("rank " + std::to_string(rank) + ": " + reason);
      return reason;
    }
    // Watches the beats: whoever has not moved at the end is gone. A rank that failed by itself says why.
    std::vector<int64_t> before, now;
    std::string first = Read(before);
    for (const auto deadline = Clock::now() + kPatience; first.empty() && Clock::now() < deadline;) {
      std::this_thread::sleep_for(kPeriod);
      first = Read(now);
    }
    if (!first.empty()) return "stopped because another rank failed: " + first;
    std::string gone;
    for (int r = 0; r < world_size; ++r) {
      if (r != rank && now[r] == before[r]) gone += (gone.empty() ? "" : ", ") + std::to_string(r);
    }
    if (gone.empty()) return reason;
    const std::string verdict = "rank " + gone + " is gone (killed or stopped): " + reason;
    LeaveReason(verdict);
    return verdict;
  }
};

LivenessMonitor::LivenessMonitor(const c10::intrusive_ptr<c10d::Store>& store, int rank, int world_size) {
  if (!store || world_size == 1) return;
  auto state = std::make_shared<State>();
  try {
    state->store = c10::make_intrusive<c10d::PrefixStore>("liveness", store->clone());
    state->store->setTimeout(kPatience);
  } catch (const std::exception&) {
    return;  // the rank that holds the store is gone already; the first collective says so
  }
  state->rank = rank;
  state->world_size = world_size;
  state->seen.resize(world_size);
  state_ = std::move(state);
  heart_ = Heart::Of(store);
  beat_ = heart_->Add([state = state_] { state->Beat(); });
}

LivenessMonitor::~LivenessMonitor() {
  if (state_) heart_->Remove(beat_);
}

namespace {

/// `ask`'s answer, or `otherwise` when it takes longer than `patience` or throws. In a thread: a stopped process that
/// holds the store neither answers nor closes the connection.
template <typename Answer, typename Ask>
Answer AskTheStore(const Ask& ask, std::chrono::milliseconds patience, const Answer& otherwise) {
  auto promise = std::make_shared<std::promise<Answer>>();
  auto future = promise->get_future();
  std::thread([promise, ask] {
    try {
      promise->set_value(ask());
    } catch (const std::exception&) {
      promise->set_exception(std::current_exception());
    }
  }).detach();
  if (future.wait_for(patience) != std::future_status::ready) return otherwise;
  try {
    return future.get();
  } catch (const std::exception&) {
    return otherwise;
  }
}

}  // namespace

std::string LivenessMonitor::Explain(const std::string& text, bool communication) {
  const std::string reason = FirstLine(text);
  if (!state_) return reason;
  const std::string line = AskTheStore<std::string>(
      [state = state_, reason, communication] { return state->Explain(reason, communication); },
      kPatience + std::chrono::seconds(1), "");
  if (line.empty()) return communication ? "the rank that holds the store (rank 0) is gone: " + reason : reason;
  // Rank 0 may hold the store: it stays until the others have had time to read the reason.
  if (state_->rank == 0) std::this_thread::sleep_for(kPatience / 2);
  return line;
}

void LivenessMonitor::SetProgress(uint64_t sequence) {
  if (!state_) return;
  const std::lock_guard<std::mutex> lock(state_->mutex);
  state_->progress = sequence;
}

std::vector<int> LivenessMonitor::Behind(uint64_t sequence) {
  if (!state_) return {};
  const auto behind = [state = state_, sequence] {
    const std::lock_guard<std::mutex> one(state->store_mutex);
    std::vector<int> ranks;
    for (int r = 0; r < state->world_size; ++r) {
      if (r == state->rank) continue;
      const bool known = state->store->check({ProgressKey(r)});
      if (!known || std::stoull(state->store->get_to_str(ProgressKey(r))) < sequence) ranks.push_back(r);
    }
    return ranks;
  };
  return AskTheStore<std::vector<int>>(behind, kPatience, {});
}

bool LivenessMonitor::Wait(c10d::Work& work) {
  std::unique_ptr<Looks> looks;
  while (true) {
    try {
      return work.wait(Looks::kLook);
    } catch (const std::exception&) {
      // It may have come to its end just after its time was up.
      if (work.isCompleted()) return work.wait(kNoTimeout);
    }
    if (!looks) looks = std::make_unique<Looks>(*this);
    looks->Look();
    const std::string reason = looks->WhyInVain(Looks::kAll);
    TORCH_CHECK_WITH(DistBackendError, reason.empty(), reason);
  }
}

void LivenessMonitor::Abort() { aborted_ = true; }

void LivenessMonitor::Looks::Look() {
  if (!monitor_.state_) return;
  gone_ = watch_.Gone();
  // Looks are counted, not seconds: after a stop of this whole process, all seconds are over at once.
  const uint64_t now = monitor_.state_->Answers();
  silent_ = now == answers_ ? silent_ + 1 : 0;
  answers_ = now;
}

std::string LivenessMonitor::Looks::WhyInVain(int whom) const {
  if (monitor_.aborted_) return "the group was aborted";
  if (!monitor_.state_) return "";
  const bool is_gone = std::find(gone_.begin(), gone_.end(), whom) != gone_.end();
  const bool all_are = gone_.size() + 1 == static_cast<size_t>(monitor_.state_->world_size);
  if (is_gone) return "rank " + std::to_string(whom) + " is gone: no heartbeat";
  if (whom == kAny ? all_are : whom == kAll && !gone_.empty()) {
    return "rank " + Listed(gone_) + " is gone: no heartbeat";
  }
  if (silent_ < kSilentLooks || monitor_.state_->HolderIsStopped()) return "";
  return "the store does not answer: rank 0, or the host that holds the store, is out of reach";
}

LivenessMonitor::Watch::Watch(LivenessMonitor& monitor) : state_(monitor.state_) {
  if (!state_) return;
  const std::lock_guard<std::mutex> lock(state_->mutex);
  if (state_->watchers++ > 0) return;
  // From now on; what the heart's thread knows is old.
  state_->gone.clear();
  state_->fresh = true;
}

LivenessMonitor::Watch::~Watch() {
  if (!state_) return;
  const std::lock_guard<std::mutex> lock(state_->mutex);
  --state_->watchers;
}

std::vector<int> LivenessMonitor::Watch::Gone() const {
  if (!state_) return {};
  const std::lock_guard<std::mutex> lock(state_->mutex);
  return state_->gone;
}

bool IsCommunicationError(const std::string& text) {
  for (const char* backend : {"shm: ", "gloo: ", "nccl: ", "hierarchical: "}) {  // our own errors' beginnings
    if (text.rfind(backend, 0) == 0) return true;
  }
  for (const char* sign :
       {"third_party/gloo", "Connection closed", "Connection reset", "Broken pipe", "NCCL", "ncclRemote", "Timed out",
        "timed out", "TCPStore", "recvValue failed", "sendBytes failed"}) {
    if (text.find(sign) != std::string::npos) return true;
  }
  return false;
}

}  // namespace lockstep
