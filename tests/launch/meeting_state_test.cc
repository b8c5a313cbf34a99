#include "lockstep/launch/internal/meeting_state.h"

#include <gtest/gtest.h>

#include <map>
#include <string>
#include <vector>

namespace lockstep {
namespace {

using nlohmann::json;
using std::chrono::seconds;

/// A meeting without sockets or clocks: members are numbers, time is ours.
class MeetingTest : public testing::Test {
 protected:
  void Open(int min_nodes, int max_nodes, bool elastic, int max_restarts) {
    options_.min_nodes = min_nodes;
    options_.max_nodes = max_nodes;
    options_.elastic = elastic;
    options_.id = "run";
    options_.join_timeout = seconds(100);
    options_.last_call_timeout = seconds(10);
    state_.emplace(options_, "launch", max_restarts, now_,
                   [this](int member, const json& message) { told_[member].push_back(message); });
  }

  void Join(int member, int node_rank = 0, int ranks = 2, const json& other = json::object()) {
    json message = {{"kind", "join"},
                    {"id", "run"},
                    {"elastic", options_.elastic},
                    {"min_nodes", options_.min_nodes},
                    {"max_nodes", options_.max_nodes},
                    {"node_rank", node_rank},
                    {"host", "host" + std::to_string(member)},
                    {"role", "default"},
                    {"ranks", ranks},
                    {"address", "10.0.0." + std::to_string(member)},
                    {"port", 1000 + member}};
    message.update(other);
    state_->Heard(member, message, now_);
  }

  void Ended(int member, int code, bool may_restart = true, const json& other = json::object()) {
    json message = {{"kind", "ended"}, {"code", code}, {"may_restart", may_restart}};
    message.update(other);
    state_->Heard(member, message, now_);
  }

  void Failed(int member, int code, bool killed = false) {
    state_->Heard(member,
                  {{"kind", "failed"}, {"code", code}, {"killed", killed}, {"text", "of " + std::to_string(member)}},
                  now_);
  }

  void Pass(seconds time) {
    now_ += time;
    state_->Tick(now_);
  }

  /// The last thing that the member was told, without what it had been told before.
  json Told(int member) {
    auto& messages = told_[member];
    json last = messages.empty() ? json({{"kind", "nothing"}}) : messages.back();
    messages.clear();
    return last;
  }

  MeetingOptions options_;
  MeetingState::Time now_{};
  std::optional<MeetingState> state_;
  std::map<int, std::vector<json>> told_;
};

TEST_F(MeetingTest, AnotherStartHasAnotherPort) {
  Open(2, 2, false, 1);
  Join(1, 0);
  Join(2, 1);
  EXPECT_EQ(Told(2)["master_port"], 1001);
  Ended(1, 3, true, {{"port", 4711}});
  Ended(2, 143);
  EXPECT_EQ(Told(2)["master_port"], 4711);
}

TEST_F(MeetingTest, AllHaveComeAndAreNumbered) {
  Open(2, 2, false, 0);
  Join(7, 1, 3);
  EXPECT_EQ(Told(7)["kind"], "nothing");
  Join(8, 0, 2);
  const json first = Told(8), second = Told(7);
  EXPECT_EQ(first["kind"], "round");
  EXPECT_EQ(first["node_rank"], 0);
  EXPECT_EQ(first["first_rank"], 0);
  EXPECT_EQ(second["node_rank"], 1);
  EXPECT_EQ(second["first_rank"], 2);
  EXPECT_EQ(second["world_size"], 5);
  EXPECT_EQ(second["master_addr"], "10.0.0.8");
  EXPECT_EQ(second["master_port"], 1008);
}

TEST_F(MeetingTest, OthersAreNotToldThatTheMasterIsLocalhost) {
  for (const char* itself : {"localhost", "0.0.0.0"}) {
    Open(2, 2, false, 0);
    Join(1, 0, 2, {{"here", true}, {"address", itself}, {"reached", itself}});
    Join(2, 1, 2, {{"reached", "job-master-0"}});
    EXPECT_EQ(Told(1)["master_addr"], "job-master-0");
    EXPECT_EQ(Told(2)["master_addr"], "job-master-0");
  }
}

TEST_F(MeetingTest, ElasticHostsWaitForTheLastCall) {
  Open(2, 3, true, 0);
  Join(1);
  Join(2, 0, 2, {{"here", true}});
  EXPECT_EQ(Told(1)["kind"], "nothing");
  Pass(seconds(9));
  EXPECT_EQ(Told(1)["kind"], "nothing");
  EXPECT_LE(state_->Next(), now_ + seconds(1));
  Pass(seconds(1));
  const json round = Told(1);
  EXPECT_EQ(round["num_nodes"], 2);
  EXPECT_EQ(round["node_rank"], 1) << "the meeting's host is the first";
}

TEST_F(MeetingTest, WhoIsMissingIsNamed) {
  Open(3, 3, false, 0);
  Join(1, 2);
  Pass(seconds(100));
  const json end = Told(1);
  EXPECT_EQ(end["kind"], "finish");
  EXPECT_EQ(end["code"], 1);
  EXPECT_EQ(end["text"], "lockstep: of 3 hosts 1 came in time; missing: --node_rank 0, 1; here: host1\n");
}

TEST_F(MeetingTest, TheFirstFailureCountsUnlessOneWasKilled) {
  Open(2, 2, false, 0);
  Join(1, 0);
  Join(2, 1);
  Failed(1, 5);
  EXPECT_EQ(Told(2)["kind"], "stop");
  Failed(2, 6);
  Ended(1, 5);
  Ended(2, 6);
  EXPECT_EQ(Told(2)["code"], 5);
  EXPECT_TRUE(state_->over());

  Open(2, 2, false, 0);
  Join(1, 0);
  Join(2, 1);
  Failed(1, 1);  // of a connection that broke
  Failed(2, 137, /*killed=*/true);
  Ended(1, 1);
  Ended(2, 137);
  const json end = Told(1);
  EXPECT_EQ(end["code"], 137);
  EXPECT_EQ(end["text"], "of 2");
}

TEST_F(MeetingTest, RestartsAreCountedForAllHosts) {
  Open(2, 2, false, 1);
  Join(1, 0);
  Join(2, 1);
  for (int restarts = 0; restarts < 2; ++restarts) {
    EXPECT_EQ(Told(1)["restarts"], restarts);
    Failed(2, 3);
    Ended(2, 3);
    Ended(1, 0);
  }
  EXPECT_EQ(Told(1)["code"], 3);
}

TEST_F(MeetingTest, WhatCanNotBeRunIsNotStartedAgain) {
  Open(2, 2, false, 5);
  Join(1, 0);
  Join(2, 1);
  Failed(2, 127);
  Ended(2, 127, /*may_restart=*/false);
  Ended(1, 0);
  EXPECT_EQ(Told(1)["code"], 127);
}

TEST_F(MeetingTest, AHostThatGoesIsNamedAndOthersGoOnWhereTheyAreEnough) {
  Open(1, 2, true, 1);
  Join(1);
  Join(2);
  state_->Gone(2, "silent", now_);
  EXPECT_EQ(Told(1)["kind"], "stop");
  Ended(1, 0);
  Pass(seconds(10));
  EXPECT_EQ(Told(1)["num_nodes"], 1);
  state_->Gone(1, "silent", now_);

  Open(2, 2, false, 1);
  Join(1, 0);
  Join(2, 1);
  state_->Gone(2, "silent", now_);
  Ended(1, 0);
  Pass(seconds(100));
  const std::string text = Told(1)["text"];
  EXPECT_NE(text.find("host host2 (node 1) had gone"), std::string::npos) << text;
}

TEST_F(MeetingTest, AHostThatComesBackBeforeItWasMissedTakesItsPlace) {
  Open(2, 2, false, 1);
  Join(1, 0);
  Join(2, 1);
  Join(3, 1);
  Join(4, 1);
  state_->Gone(4, "its launcher has ended", now_);
  EXPECT_EQ(Told(3)["kind"], "nothing");
  state_->Gone(2, "silent", now_);
  Ended(1, 0);
  const json round = Told(3);
  EXPECT_EQ(round["kind"], "round");
  EXPECT_EQ(round["node_rank"], 1);

  Join(5, 1);
  state_->Gone(3, "silent", now_);
  Ended(1, 0);
  EXPECT_EQ(Told(5)["code"], 1) << "no restart is left";
}

TEST_F(MeetingTest, AHostMayGoThatHasExpendableRanksAlone) {
  options_.expendable_from = 2;
  Open(3, 3, false, 0);
  for (const int member : {1, 2, 3}) Join(member, member - 1);
  state_->Gone(3, "silent", now_);
  const json note = Told(1);
  EXPECT_EQ(note["kind"], "note");
  EXPECT_EQ(note["text"], "lockstep: host host3 (node 2) has gone: silent; the others go on\n");
  Ended(1, 0);
  Ended(2, 0);
  EXPECT_EQ(Told(1)["code"], 0);

  options_.expendable_from = 3;
  Open(2, 2, false, 0);
  for (const int member : {1, 2}) Join(member, member - 1);
  state_->Gone(2, "silent", now_);
  EXPECT_EQ(Told(1)["kind"], "stop") << "rank 2 may not go";
}

TEST_F(MeetingTest, ANewHostIsTakenInAndASpareOneWaits) {
  Open(1, 2, true, 0);
  Join(1);
  Pass(seconds(10));
  Told(1);
  Join(2);
  EXPECT_EQ(Told(1)["kind"], "stop");
  Ended(1, 0);
  const json round = Told(2);
  EXPECT_EQ(round["restarts"], 0);
  EXPECT_EQ(round["regroups"], 1);
  Told(1);
  Join(3);
  EXPECT_EQ(Told(1)["kind"], "nothing");
  EXPECT_EQ(Told(3)["kind"], "nothing");
  Ended(1, 0);
  Ended(2, 0);
  EXPECT_EQ(Told(1)["code"], 0);
  EXPECT_EQ(Told(3)["kind"], "finish");
}

TEST_F(MeetingTest, ARunThatIsEndingIsNotStartedAgainForANewHost) {
  Open(1, 3, true, 1);
  Join(1);
  Join(2);
  Pass(seconds(10));
  Ended(1, 0);
  Told(2);
  Join(3);
  EXPECT_EQ(Told(2)["kind"], "nothing");
  Ended(2, 0);
  for (const int member : {1, 2, 3}) {
    const json end = Told(member);
    EXPECT_EQ(end["kind"], "finish");
    EXPECT_EQ(end["code"], 0);
  }

  Open(1, 3, true, 1);  // but for a failure it would be, and then the host is there
  Join(1);
  Join(2);
  Pass(seconds(10));
  Ended(1, 0);
  Join(3);
  Failed(2, 5);
  Ended(2, 5);
  const json round = Told(3);
  EXPECT_EQ(round["kind"], "round");
  EXPECT_EQ(round["num_nodes"], 3);
}

TEST_F(MeetingTest, AWishToEndIsNoFailure) {
  Open(2, 2, false, 3);
  Join(1, 0);
  Join(2, 1);
  state_->Heard(2, {{"kind", "ended"}, {"code", 75}, {"interrupted", true}, {"stopped", true}}, now_);
  EXPECT_EQ(Told(1)["soon"], false);
  state_->Heard(1, {{"kind", "ended"}, {"code", 75}, {"stopped", true}}, now_);
  EXPECT_EQ(Told(1)["code"], 75);
}

TEST_F(MeetingTest, AWishToEndCountsWhileRanksAreBeingEnded) {
  const json interrupted = {{"kind", "ended"}, {"code", 75}, {"interrupted", true}, {"stopped", true}};
  Open(2, 2, false, 3);  // because one has failed
  Join(1, 0);
  Join(2, 1);
  Failed(1, 5);
  Ended(1, 5);
  state_->Heard(2, interrupted, now_);
  json end = Told(1);
  EXPECT_EQ(end["kind"], "finish");
  EXPECT_EQ(end["code"], 75);
  EXPECT_EQ(end["text"], "of 1lockstep: the launcher of host host2 was told to end by a signal\n");

  Open(1, 2, true, 0);  // because a host has come
  Join(1);
  Pass(seconds(10));
  Join(2);
  state_->Heard(1, interrupted, now_);
  end = Told(1);
  EXPECT_EQ(end["kind"], "finish");
  EXPECT_EQ(end["code"], 75);
  EXPECT_EQ(Told(2)["kind"], "finish");
}

TEST_F(MeetingTest, StrangersAreRefused) {
  Open(2, 2, false, 0);
  const auto refused = [&](int member, const json& other) {
    Join(member, 0, 2, other);
    const json told = Told(member);
    EXPECT_EQ(told["kind"], "refused") << other;
    return told.value("text", "");
  };
  EXPECT_NE(refused(1, {{"id", "another"}}).find("--rdzv_id=run"), std::string::npos);
  EXPECT_NE(refused(2, {{"max_nodes", 3}}).find("--nnodes=2:2"), std::string::npos);
  EXPECT_NE(refused(3, {{"elastic", true}}).find("--rdzv_backend=static"), std::string::npos);
  Join(4, 0);
  Join(5, 0);
  EXPECT_EQ(Told(5)["kind"], "nothing") << "host 4 may have gone without a word";
  state_->Heard(4, {{"kind", "beat"}}, now_);
  EXPECT_EQ(Told(5)["text"], "--node_rank=0 is taken by host host4");
  state_->Close("the launcher has ended");
  EXPECT_EQ(Told(4)["text"], "lockstep: the launcher has ended\n");
  EXPECT_NE(refused(6, json::object()).find("is over"), std::string::npos);
}

TEST_F(MeetingTest, ItsHostHearsOfRefusals) {
  Open(2, 2, false, 0);
  Join(1, 1, 2, {{"id", "early"}});
  Join(2, 0, 2, {{"here", true}});
  const std::string begin = "lockstep: the launcher of host host",
                    why = ": the run that meets here has --rdzv_id=run, ";
  EXPECT_EQ(Told(2)["text"], begin + "1 was refused" + why + "and this launcher --rdzv_id=early\n");
  Join(3, 1, 2, {{"id", "late"}});
  EXPECT_EQ(Told(2)["text"], begin + "3 was refused" + why + "and this launcher --rdzv_id=late\n");
}

}  // namespace
}  // namespace lockstep
