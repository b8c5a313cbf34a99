#include "lockstep/launch/internal/launch_with_others.h"

#include <absl/status/statusor.h>
#include <absl/strings/str_cat.h>
#include <poll.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <deque>
#include <functional>
#include <future>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>

#include "lockstep/base/host_name.h"
#include "lockstep/launch/internal/connections.h"
#include "lockstep/launch/internal/endpoint.h"
#include "lockstep/launch/internal/launch_stage.h"
#include "lockstep/launch/internal/launcher_meeting.h"
#include "lockstep/launch/internal/message_socket.h"
#include "lockstep/launch/port.h"

namespace lockstep {
namespace {

using Clock = std::chrono::steady_clock;
using nlohmann::json;
using std::chrono::milliseconds;

constexpr int kFailed = 1;
constexpr std::chrono::seconds kPatience(5);  // before it is said what is waited for

/// This host's seat in the meeting.
class Seat : public Companion {
 public:
  Seat(MessageSocket socket, const MeetingOptions& options, LaunchStage& stage)
      : socket_(std::move(socket)),
        stage_(stage),
        beat_interval_(options.beat_interval),
        silence_limit_(options.silence_limit) {}

  int fd() const override { return socket_.fd(); }

  Wish Look() override {
    Hear();
    const auto is_stop = [](const json& message) { return message["kind"] == "stop"; };
    const auto stop = std::find_if(news_.begin(), news_.end(), is_stop);
    if (stop != news_.end()) {
      wish_ = stop->value("soon", true) ? Wish::kEndSoon : Wish::kEndNow;
      news_.erase(stop);
    }
    // The meeting ends while ranks run here only where its host's launcher was told to end.
    const bool over =
        std::any_of(news_.begin(), news_.end(), [](const json& message) { return message["kind"] == "finish"; });
    if (over || Lost()) wish_ = Wish::kEndNow;
    return wish_;
  }

  void Failed(const FirstFailure& failure) override {
    Say({{"kind", "failed"}, {"code", failure.code}, {"killed", failure.signal != 0}, {"text", Describe(failure)}});
  }

  /// `port` is for the next start's store, should rank 0 be this host's.
  void Ended(const RankOutcome& outcome, int port) {
    wish_ = Wish::kGoOn;
    Say({{"kind", "ended"},
         {"code", outcome.code},
         {"interrupted", outcome.interrupted},
         {"stopped", outcome.stopped},
         {"may_restart", outcome.may_restart},
         {"port", port}});
  }

  void Say(const json& message) { socket_.Send(message); }

  /// The next message, while no ranks run; nothing yet.
  std::optional<json> News() {
    Hear();
    // What should stop ranks that have ended by themselves at the same time.
    while (!news_.empty() && news_.front()["kind"] == "stop") news_.pop_front();
    if (news_.empty()) return std::nullopt;
    json first = std::move(news_.front());
    news_.pop_front();
    return first;
  }

  /// The meeting has gone. Once that is so it stays so: ranks are ended for it.
  bool Lost() {
    lost_ = lost_ || socket_.closed() || socket_.SilentFor(silence_limit_);
    return lost_;
  }

  /// Whether the other end has said anything.
  bool heard() const { return heard_; }

  /// As the meeting wants it, once it has said so.
  milliseconds beat_interval() const { return beat_interval_; }

 private:
  void Hear() {
    if (Clock::now() >= beat_at_) {
      Say({{"kind", "beat"}});
      beat_at_ = Clock::now() + beat_interval_;
    }
    for (json& message : socket_.Receive()) {
      heard_ = true;
      if (message["kind"] == "note") {
        stage_.Say(message.value("text", ""));
      } else if (message["kind"] == "keep_alive") {
        beat_interval_ = milliseconds(message.at("interval").get<int64_t>());
        silence_limit_ = milliseconds(message.at("limit").get<int64_t>());
        beat_at_ = std::min(beat_at_, Clock::now() + beat_interval_);
      } else if (message["kind"] != "beat") {
        news_.push_back(std::move(message));
      }
    }
  }

  MessageSocket socket_;
  LaunchStage& stage_;
  milliseconds beat_interval_, silence_limit_;
  bool lost_ = false, heard_ = false;
  std::deque<json> news_;  // in order: a wish to stop may come right behind the round that it means
  Wish wish_ = Wish::kGoOn;
  Clock::time_point beat_at_ = Clock::now();
};

class Launcher {
 public:
  Launcher(LaunchPlan plan, const MeetingOptions& options) : plan_(std::move(plan)), options_(options), stage_(plan_) {}

  int Run() {
    if (!stage_.ready().ok()) return Fail(std::string(stage_.ready().message()));
    if (!port_.ok()) return Fail(std::string(port_.status().message()));
    if (const int code = OpenMeeting(); code != 0) return code;
    if (const int code = TakeSeat(); code != 0) return code;
    const int code = Serve();
    seat_.reset();  // before the meeting, which waits for us to go
    return code;
  }

 private:
  int Fail(const std::string& message) {
    stage_.Say(absl::StrCat("error: ", message, "\n"));
    return kFailed;
  }

  /// Other hosts must hear of us often enough.
  void BeQuick() {
    plan_.tick = std::min({plan_.tick, std::max(milliseconds(1), seat_->beat_interval() / 2), milliseconds(60'000)});
  }

  /// Does what may wait for a name server, and listens to signals meanwhile; nothing once one was a wish to end, which
  /// is in `*signal` then. The work is left to itself in that case.
  template <typename Result>
  std::optional<Result> Await(std::function<Result()> work, int* signal) {
    std::packaged_task<Result()> task(std::move(work));
    std::future<Result> result = task.get_future();
    std::thread(std::move(task)).detach();
    while (result.wait_for(milliseconds(1)) != std::future_status::ready) {
      if ((*signal = WaitFor(-1, milliseconds(10))) != 0) return std::nullopt;
    }
    return result.get();
  }

  int OpenMeeting() {
    bool may_host = options_.elastic ? options_.is_host.value_or(false) : options_.node_rank == 0;
    if (options_.elastic && !options_.is_host) {
      int signal = 0;
      const auto here = Await<bool>([host = options_.host] { return IsThisMachine(host); }, &signal);
      if (!here) return 128 + signal;
      may_host = *here;
    }
    if (!may_host) return 0;
    bool in_use = false;
    auto meeting = LauncherMeeting::Open(options_, plan_.spawn.launch_id, plan_.spawn.max_restarts, &in_use);
    if (meeting.ok()) {
      meeting_ = *std::move(meeting);
      return 0;
    }
    // Another launcher on this machine may have it.
    if (in_use && options_.elastic && !options_.is_host) return 0;
    return Fail(std::string(meeting.status().message()));
  }

  int TakeSeat() {
    const auto deadline = Clock::now() + options_.reach_timeout;
    auto say_at = Clock::now() + kPatience;
    std::string why_not;
    int fd = -1;
    while (true) {
      struct Try {
        int fd;
        std::string why_not;
      };
      const auto connect = [host = meeting_ ? "localhost" : options_.host, port = options_.port] {
        Try result;
        result.fd = TryConnect(host, port, &result.why_not);
        return result;
      };
      int wish = 0;
      const auto tried = Await<Try>(connect, &wish);
      if (!tried) return 128 + wish;
      fd = tried->fd;
      why_not = tried->why_not;
      if (fd >= 0) break;
      if (Clock::now() >= deadline) {
        return Fail(absl::StrCat("no launcher at ", options_.host, ":", options_.port,
                                 ", where the hosts meet: ", why_not,
                                 options_.elastic ? "; is this the host that --rdzv_endpoint names? then give "
                                                    "--rdzv_conf=is_host=1"
                                                  : "; it is the launcher with --node_rank=0"));
      }
      if (Clock::now() >= say_at) {
        stage_.Say(
            absl::StrCat("lockstep: no launcher at ", options_.host, ":", options_.port, " yet: ", why_not, "\n"));
        say_at = Clock::time_point::max();
      }
      if (const int signal = WaitFor(-1, milliseconds(200)); signal != 0) return 128 + signal;
    }
    std::string address = options_.local_addr;
    if (address.empty()) address = meeting_ ? options_.host : LocalAddress(fd);
    seat_.emplace(MessageSocket(fd), options_, stage_);
    seat_->Say({{"kind", "join"},
                {"id", options_.id},
                {"elastic", options_.elastic},
                {"min_nodes", options_.min_nodes},
                {"max_nodes", options_.max_nodes},
                {"node_rank", options_.node_rank},
                {"host", HostName()},
                {"here", meeting_ != nullptr},
                {"role", plan_.role},
                {"ranks", plan_.spawn.num_ranks},
                {"address", address},
                {"reached", options_.host},
                {"port", port_->port()}});
    return 0;
  }

  /// A wish to end that has come, else 0.
  int WaitFor(int fd, milliseconds most) {
    pollfd waited[] = {{stage_.setting().signals->fd(), POLLIN, 0}, {fd, POLLIN, 0}};
    poll(waited, 2, static_cast<int>(most.count()));
    for (int signal; (signal = stage_.setting().signals->Next()) != 0;) {
      if (signal == SIGINT || signal == SIGTERM || signal == SIGHUP || signal == SIGQUIT) return signal;
    }
    return 0;
  }

  int Serve() {
    auto say_at = Clock::now() + kPatience;
    while (true) {
      const auto message = seat_->News();
      BeQuick();
      if (message) {
        const std::string kind = message->at("kind");
        const std::string text = message->value("text", "");
        if (kind == "refused") return Fail(text);
        if (kind == "finish") {
          stage_.Say(text);
          return message->value("code", kFailed);
        }
        if (kind == "again") {
          stage_.Say(absl::StrCat(text, "lockstep: all hosts start again (", message->value("restarts", 0), " of ",
                                  plan_.spawn.max_restarts, " restarts)\n"));
        }
        if (kind == "round") RunRound(*message);
        say_at = Clock::now() + kPatience;
        continue;
      }
      if (seat_->Lost() && !seat_->heard()) {
        return Fail(absl::StrCat("what listens at ", options_.host, ":", options_.port,
                                 ", where the hosts meet, is no lockstep_run that takes part in this: choose another "
                                 "port, or see what has it there"));
      }
      if (seat_->Lost()) {
        return Fail(absl::StrCat("the launcher at ", options_.host, ":", options_.port,
                                 ", where the hosts meet, has gone; without it this host can't go on"));
      }
      if (Clock::now() >= say_at) {
        stage_.Say(absl::StrCat("lockstep: waiting for other hosts at ", options_.host, ":", options_.port, "\n"));
        say_at = Clock::time_point::max();
      }
      if (const int signal = WaitFor(seat_->fd(), plan_.tick); signal != 0) return 128 + signal;
    }
  }

  void RunRound(const json& message) {
    Placement placement;
    placement.node_rank = message.at("node_rank");
    placement.num_nodes = message.at("num_nodes");
    placement.first_rank = message.at("first_rank");
    placement.world_size = message.at("world_size");
    placement.first_role_rank = message.at("first_role_rank");
    placement.role_world_size = message.at("role_world_size");
    placement.master_addr = message.at("master_addr");
    placement.master_port = message.at("master_port");
    placement.restarts = message.at("restarts");
    placement.regroups = message.at("regroups");
    plan_.spawn.launch_id = message.at("launch_id");
    stage_.Say(absl::StrCat("lockstep: hosts and their ranks: ", message.value("hosts", ""), "; this is node ",
                            placement.node_rank, "\n"));
    stage_.setting().companion = &*seat_;
    const RankOutcome outcome = RunRankSet(plan_, placement, stage_.setting());
    // Ranks that were ended because the meeting was lost have not ended well, should it be there after all: it learns
    // that this host has gone.
    if (seat_->Lost()) return;
    // What a rank has left behind may still listen at the last one.
    if (auto port = ReservedPort::Reserve(0); port.ok()) port_ = std::move(port);
    seat_->Ended(outcome, port_->port());
  }

  LaunchPlan plan_;
  const MeetingOptions& options_;
  LaunchStage stage_;
  absl::StatusOr<ReservedPort> port_ = ReservedPort::Reserve(0);  // for the ranks, should rank 0 be ours
  std::unique_ptr<LauncherMeeting> meeting_;
  std::optional<Seat> seat_;
};

}  // namespace

int LaunchWithOthers(LaunchPlan plan, const MeetingOptions& options) {
  return Launcher(std::move(plan), options).Run();
}

}  // namespace lockstep
