#pragma once

#include <chrono>
#include <functional>
#include <list>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/launch/internal/launcher_options.h"

namespace lockstep {

/// What a meeting knows and decides, without sockets: messages and the time go in, messages come out.
class MeetingState {
 public:
  using Time = std::chrono::steady_clock::time_point;
  using Send = std::function<void(int member, const nlohmann::json& message)>;

  MeetingState(const MeetingOptions& options, std::string launch_id, int max_restarts, Time now, Send send);

  /// A launcher with a number of its own, never used again, has said something.
  void Heard(int member, const nlohmann::json& message, Time now);

  /// Its connection has ended or fallen silent, as `how` says.
  void Gone(int member, const std::string& how, Time now);

  /// The launcher beside the meeting wants to end.
  void Close(const std::string& why);

  /// To be called at `Next()` at the latest.
  void Tick(Time now);
  Time Next() const;

  bool over() const { return phase_ == Phase::kOver; }

 private:
  enum class Phase { kGathering, kRunning, kStopping, kOver };
  struct Member {
    int id = 0;
    std::string host, role, address;
    std::string reached;  // the name under which it found the meeting
    int ranks = 1, port = 0, node_rank = -1, first_rank = 0;
    bool here = false;      // beside the meeting
    bool running = false;   // has ranks of this round
    bool in_round = false;  // had some
  };
  struct End {
    int code = 0;
    std::string text;
    bool final = false;  // no other round after it, whatever restarts are left
    bool killed = false;
    bool regroup = false;  // nothing is wrong, somebody has come
  };

  Member* Find(int id);
  std::string Join(Member member, const nlohmann::json& message, Time now);
  void Admit(const Member& member, Time now);
  void Refuse(const Member& who, const std::string& why);
  void SendUnheard(const Member& member);
  void LivesOn(const Member& member);
  void MayBegin(Time now);
  void Begin();
  void Stop(const End& end, bool soon);
  void RoundMayBeOver(Time now);
  void Gather(Time now);
  void Finish(int code, const std::string& text);
  std::string Missing() const;
  static std::string MasterAddress(const std::vector<Member*>& nodes);

  const MeetingOptions options_;
  const std::string launch_id_;
  const int max_restarts_;
  const Send send_;
  Phase phase_ = Phase::kGathering;
  std::list<Member> members_;    // as they came
  std::list<Member> claimants_;  // each has the number of a member that may have gone without a word
  int restarts_ = 0, regroups_ = 0;
  Time join_deadline_;
  std::optional<Time> last_call_;
  bool some_ended_ = false;  // hosts of this round, by themselves
  End end_;
  std::string unheard_;  // notes from before the meeting's host had taken its seat
  std::string lost_;     // who went away, for those who wait in vain
};

}  // namespace lockstep
