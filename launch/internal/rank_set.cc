#include "lockstep/launch/internal/rank_set.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/wait.h>
#include <unistd.h>

#include <absl/strings/str_cat.h>
#include <absl/strings/str_replace.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <string>
#include <vector>

#include "lockstep/base/host_name.h"
#include "lockstep/launch/internal/rank_environment.h"
#include "lockstep/launch/internal/rank_process.h"

namespace lockstep {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::chrono::milliseconds kSameWish(100);  // between two signals that are one

constexpr std::chrono::hours kLongestTick(1);  // longer ones don't fit poll's milliseconds

/// For poll: not before that time.
int MillisecondsUntil(Clock::time_point time) {
  const auto left = std::chrono::ceil<std::chrono::milliseconds>(time - Clock::now());
  return static_cast<int>(std::max<int64_t>(left.count(), 0));
}

bool IsWishToEnd(int signal) { return signal == SIGINT || signal == SIGTERM || signal == SIGHUP || signal == SIGQUIT; }

class RankSet {
 public:
  RankSet(const LaunchPlan& plan, const Placement& placement, const RankSetting& setting)
      : plan_(plan),
        options_(plan.spawn),
        placement_(placement),
        setting_(setting),
        kill_after_(plan.spawn.kill_after),
        tick_(std::min<std::chrono::milliseconds>(plan.tick, kLongestTick)) {}

  RankOutcome Run() {
    Start();
    while (running_ > 0) {
      Reap();
      if (running_ == 0) break;
      LookAtTheClock();
      Wait();
      if (relay_) relay_->Pump();
      for (int signal; (signal = setting_.signals->Next()) != 0;) Heard(signal);
      if (setting_.companion != nullptr) EndForOthers(setting_.companion->Look());
    }
    if (relay_) relay_->Finish();
    return Judge();
  }

 private:
  struct Ended {
    int local_rank;
    int code;
    int signal;
  };

  void Start() {
    children_.assign(static_cast<size_t>(options_.num_ranks), -1);
    if (plan_.output.Relayed()) relay_.emplace(*setting_.out, *setting_.err);
    OpenFilteredFiles();
    for (int local_rank = 0; local_rank < options_.num_ranks; ++local_rank) {
      RankProcess process;
      process.argv = options_.argv;
      const std::string error_file = ErrorFile(local_rank);
      unlink(error_file.c_str());  // of a start that counted as the same
      process.environment = RankEnvironment(plan_, placement_, local_rank, error_file);
      if (!plan_.cores.empty()) process.cores = plan_.cores[static_cast<size_t>(local_rank)];
      process.mask = setting_.signals->before();
      pid_t pid = -1;
      if (!relay_ || (AddStream(local_rank, /*is_error=*/false, &process.out) &&
                      AddStream(local_rank, /*is_error=*/true, &process.err))) {
        pid = StartRank(process);
      }
      const int error = errno;
      if (process.out >= 0) close(process.out);
      if (process.err >= 0) close(process.err);
      if (pid < 0) {
        Say(absl::StrCat("cannot start rank ", placement_.first_rank + local_rank, ": ", NoProcess(error)));
        result_ = 1;
        terminate_at_ = Clock::now();
        break;
      }
      setting_.guardian->Watch(pid);
      children_[static_cast<size_t>(local_rank)] = pid;
      ++running_;
    }
  }

  std::string ErrorFile(int local_rank) const {
    const std::string folder = setting_.logs == nullptr ? "" : setting_.logs->Rank(placement_.restarts, local_rank);
    return folder.empty() ? "" : folder + "/error.json";
  }

  void OpenFilteredFiles() {
    if (setting_.logs == nullptr) return;
    const std::string folder = setting_.logs->Attempt(placement_.restarts);
    const auto open_file = [&](const std::vector<std::string>& filters, const char* name) {
      return filters.empty() || folder.empty()
                 ? -1
                 : open((folder + "/" + name).c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
    };
    filtered_out_ = open_file(plan_.output.stdout_filters, "filtered_stdout.log");
    filtered_err_ = open_file(plan_.output.stderr_filters, "filtered_stderr.log");
  }

  /// A pipe for the rank's stream.
  bool AddStream(int local_rank, bool is_error, int* end) {
    const OutputPlan& output = plan_.output;
    const int bit = is_error ? StreamChoice::kErr : StreamChoice::kOut;
    const bool teed = (output.tee.Of(local_rank) & bit) != 0;
    const bool redirected = (output.redirects.Of(local_rank) & bit) != 0;
    OutputRelay::Stream stream;
    stream.local_rank = local_rank;
    stream.is_error = is_error;
    const bool shown =
        output.shown.empty() || std::find(output.shown.begin(), output.shown.end(), local_rank) != output.shown.end();
    stream.to_console = shown && (teed || !redirected);
    if (output.prefix) stream.prefix = Prefix(local_rank, teed);
    if (teed || redirected) {
      const std::string folder = setting_.logs->Rank(placement_.restarts, local_rank);
      if (!folder.empty()) {
        const std::string path = folder + (is_error ? "/stderr.log" : "/stdout.log");
        stream.file = open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
        if (stream.file < 0) return false;
      }
    }
    stream.filtered_file = is_error ? filtered_err_ : filtered_out_;
    if (stream.filtered_file >= 0 && teed) stream.filters = is_error ? output.stderr_filters : output.stdout_filters;
    *end = relay_->Add(stream);
    return *end >= 0;
  }

  std::string Prefix(int local_rank, bool teed) const {
    if (!plan_.output.line_prefix.empty()) {
      return absl::StrReplaceAll(plan_.output.line_prefix,
                                 {{"${role_name}", plan_.role},
                                  {"${rank}", absl::StrCat(placement_.first_rank + local_rank)},
                                  {"${local_rank}", absl::StrCat(local_rank)}});
    }
    if (teed) return absl::StrCat("[", plan_.role, local_rank, "]:");
    return absl::StrCat("[rank", placement_.first_rank + local_rank, "]: ");
  }

  /// Takes notice of those that have ended.
  void Reap() {
    std::vector<Ended> ended;
    for (int local_rank = 0; local_rank < options_.num_ranks; ++local_rank) {
      pid_t& child = children_[static_cast<size_t>(local_rank)];
      siginfo_t info{};
      if (child < 0 || waitid(P_PID, static_cast<id_t>(child), &info, WEXITED | WNOHANG | WNOWAIT) != 0 ||
          info.si_pid == 0) {
        continue;
      }
      // Before its number is free for others: what it has left behind in its process group goes with it.
      kill(-child, SIGKILL);
      setting_.guardian->Forget(child);
      waitpid(child, nullptr, 0);
      --running_;
      const bool killed = info.si_code != CLD_EXITED;
      ended.push_back({local_rank, killed ? 128 + info.si_status : info.si_status, killed ? info.si_status : 0});
    }
    // Where several have ended since we looked last, one that was killed is the cause and no consequence.
    std::stable_sort(ended.begin(), ended.end(),
                     [](const Ended& a, const Ended& b) { return (a.signal != 0) > (b.signal != 0); });
    if (plan_.is_init) ReapOrphans();
    for (const Ended& one : ended) {
      const pid_t pid = children_[static_cast<size_t>(one.local_rank)];
      children_[static_cast<size_t>(one.local_rank)] = -1;
      Took(one, pid);
    }
  }

  /// Where this process is the first of its container, what ranks had started and left behind comes to it. Nobody else
  /// takes notice of such a process's end, without which it stays in the table of processes.
  void ReapOrphans() {
    siginfo_t info{};
    while (waitid(P_ALL, 0, &info, WEXITED | WNOHANG | WNOWAIT) == 0 && info.si_pid != 0) {
      if (std::find(children_.begin(), children_.end(), info.si_pid) != children_.end()) return;  // ended just now
      waitpid(info.si_pid, nullptr, 0);
      info = {};
    }
  }

  void Took(const Ended& ended, pid_t pid) {
    if (ended.code == options_.stop_code && ended.signal == 0) {
      stopped_ = true;
      terminate_at_ = std::min(terminate_at_, Clock::now() + options_.stop_grace);
      return;
    }
    const int rank = placement_.first_rank + ended.local_rank;
    FirstFailure failure;
    failure.local_rank = ended.local_rank;
    failure.rank = rank;
    failure.process = pid;
    failure.code = ended.code;
    failure.signal = ended.signal;
    if (ended.code != 0 && interrupted_ == 0 && options_.expendable_from >= 0 && rank >= options_.expendable_from) {
      Say(HowItEnded(failure) + "; the others go on");
      return;
    }
    broken_ |= ended.code != 0;
    if (ended.code == 0 || interrupted_ != 0 || ended_for_others_) return;
    if (result_ != 0) return;  // what follows the first failure is its consequence
    result_ = ended.code;
    if (relay_) relay_->Pump();
    failure.host = HostName();
    failure.time = std::time(nullptr);
    failure.error_message = ReadErrorFile(ErrorFile(ended.local_rank));
    if (relay_) failure.last_lines = relay_->LastErrorLines(ended.local_rank);
    if (ended.signal != 0 || options_.report_exit_codes) {
      Say(HowItEnded(failure) + "; stopping the others");
    }
    failure_ = failure;
    if (setting_.companion != nullptr) setting_.companion->Failed(failure);
    terminate_at_ = std::min(terminate_at_, Clock::now() + options_.grace);
  }

  void LookAtTheClock() {
    const auto now = Clock::now();
    if (options_.time_limit.count() > 0 && now - setting_.begin > options_.time_limit && result_ == 0) {
      for (const std::string& rank : Running()) Say(rank + " did not end in time");
      result_ = 124;
      late_ = true;
      terminate_at_ = now;
    }
    if (now >= terminate_at_) {
      SignalAll(SIGTERM);
      terminate_at_ = Clock::time_point::max();
      kill_at_ = std::min(kill_at_, now + kill_after_);
    }
    if (now >= kill_at_) {
      SignalAll(SIGKILL);
      kill_at_ = Clock::time_point::max();
      leave_at_ = std::min(leave_at_, now + options_.leave_after);
    }
    if (now >= leave_at_) Leave();
  }

  /// Ranks that a kill doesn't end, nor shall this process wait for them without an end: whoever waits for it would.
  void Leave() {
    for (const std::string& rank : Running()) {
      Say(rank +
          " is left behind: it was killed and has not ended; a driver or a file system holds it, or a debugger, "
          "or it is another user's");
    }
    children_.assign(children_.size(), -1);
    running_ = 0;
    if (result_ == 0) result_ = 128 + SIGKILL;
    broken_ = left_ = true;
  }

  /// "rank 1 (process 4711)" of those that have not ended.
  std::vector<std::string> Running() const {
    std::vector<std::string> ranks;
    for (int local_rank = 0; local_rank < options_.num_ranks; ++local_rank) {
      const pid_t child = children_[static_cast<size_t>(local_rank)];
      if (child >= 0)
        ranks.push_back(absl::StrCat("rank ", placement_.first_rank + local_rank, " (process ", child, ")"));
    }
    return ranks;
  }

  void Say(const std::string& what) { setting_.err->Write("lockstep: " + what + "\n"); }

  void Wait() {
    std::vector<pollfd> waited = {{setting_.signals->fd(), POLLIN, 0}};
    if (setting_.companion != nullptr) waited.push_back({setting_.companion->fd(), POLLIN, 0});
    if (relay_) relay_->AddTo(waited);
    const auto until = std::min({Clock::now() + tick_, terminate_at_, kill_at_, leave_at_});
    poll(waited.data(), waited.size(), MillisecondsUntil(until));
  }

  void Heard(int signal) {
    if (signal == SIGCHLD) return;
    if (!IsWishToEnd(signal)) {
      SignalAll(signal);
      asked_ |= signal == SIGUSR1;
      return;
    }
    // Some send one wish twice, as timeout does: to us, and to our process group.
    if (interrupted_ != 0 && Clock::now() - interrupted_at_ < kSameWish) return;
    SignalAll(interrupted_ != 0 ? SIGKILL : signal);
    interrupted_ = signal;
    interrupted_at_ = Clock::now();
    kill_at_ = std::min(kill_at_, interrupted_at_ + options_.stop_grace);
  }

  void EndForOthers(Companion::Wish wish) {
    if (wish == Companion::Wish::kGoOn || ended_for_others_) return;
    ended_for_others_ = true;
    if (result_ != 0) return;  // they are ending
    const bool soon = wish == Companion::Wish::kEndSoon;
    terminate_at_ = std::min(terminate_at_, Clock::now() + (soon ? options_.grace : Clock::duration(0)));
    // Those that save what they have may need some time.
    if (!soon) kill_after_ = std::max(kill_after_, options_.stop_grace);
  }

  /// To the whole process group of each rank that is running.
  void SignalAll(int signal) {
    for (const pid_t child : children_) {
      if (child <= 0) continue;
      kill(-child, signal);
      if (IsWishToEnd(signal)) kill(-child, SIGCONT);  // one that was stopped wouldn't hear it
    }
  }

  RankOutcome Judge() {
    for (const int fd : {filtered_out_, filtered_err_}) {
      if (fd >= 0) close(fd);
    }
    RankOutcome outcome;
    outcome.failure = failure_;
    outcome.stopped = stopped_;
    if (interrupted_ != 0) {
      outcome.interrupted = true;
      outcome.code = broken_ ? 128 + interrupted_ : stopped_ ? options_.stop_code : 0;
      return outcome;
    }
    const bool cannot_run = result_ == 126 || result_ == 127;  // nor could it the next time
    outcome.code = result_ == 0 && stopped_ ? options_.stop_code : result_;
    outcome.may_restart = result_ != 0 && !late_ && !left_ && !asked_ && !cannot_run;
    return outcome;
  }

  const LaunchPlan& plan_;
  const SpawnOptions& options_;
  const Placement& placement_;
  const RankSetting& setting_;
  std::chrono::milliseconds kill_after_;
  const std::chrono::milliseconds tick_;
  std::optional<OutputRelay> relay_;
  int filtered_out_ = -1, filtered_err_ = -1;
  std::vector<pid_t> children_;  // by local rank; -1 once it has ended
  int running_ = 0;
  int result_ = 0;
  std::optional<FirstFailure> failure_;
  Clock::time_point terminate_at_ = Clock::time_point::max();
  Clock::time_point kill_at_ = Clock::time_point::max();
  Clock::time_point leave_at_ = Clock::time_point::max();
  int interrupted_ = 0;  // by this signal
  Clock::time_point interrupted_at_;
  bool asked_ = false;                     // to stop, by a signal that ranks need not obey
  bool stopped_ = false, broken_ = false;  // some rank ended with stop_code; with another one that is not 0
  bool late_ = false;
  bool left_ = false;  // some rank did not end though it was killed, and may hold what the next ones need
  bool ended_for_others_ = false;
};

}  // namespace

RankOutcome RunRankSet(const LaunchPlan& plan, const Placement& placement, const RankSetting& setting) {
  return RankSet(plan, placement, setting).Run();
}

}  // namespace lockstep
