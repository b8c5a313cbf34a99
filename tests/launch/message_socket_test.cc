#include "lockstep/launch/internal/message_socket.h"

#include <gtest/gtest.h>
#include <sys/socket.h>

#include <chrono>
#include <optional>
#include <string>

namespace lockstep {
namespace {

class MessageSocketTest : public testing::Test {
 protected:
  void SetUp() override {
    int ends[2];
    ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM, 0, ends), 0);
    here_.emplace(ends[0]);
    there_.emplace(ends[1]);
  }

  std::optional<MessageSocket> here_, there_;
};

TEST_F(MessageSocketTest, MessagesComeWhole) {
  here_->Send({{"kind", "a"}, {"text", "two\nlines, \xff"}});
  here_->Send({{"kind", "b"}});
  const auto messages = there_->Receive();
  ASSERT_EQ(messages.size(), 2u);
  EXPECT_EQ(messages[0]["text"], "two\nlines, \xEF\xBF\xBD");
  EXPECT_EQ(messages[1]["kind"], "b");
  EXPECT_TRUE(there_->Receive().empty());
}

TEST_F(MessageSocketTest, AClosedOneIsNotWaitedFor) {
  EXPECT_GE(here_->fd(), 0);
  there_->Send({{"kind", "last"}});
  there_.reset();
  EXPECT_EQ(here_->Receive().size(), 1u);
  EXPECT_TRUE(here_->closed());
  EXPECT_EQ(here_->fd(), -1);
}

TEST_F(MessageSocketTest, ItIsSilentWhenNothingComesWhileWeLook) {
  constexpr std::chrono::milliseconds kLimit(1000), kTick(100);
  auto now = std::chrono::steady_clock::now() + kTick;
  for (int i = 0; i < 8; ++i) EXPECT_FALSE(here_->SilentFor(kLimit, now += kTick)) << i;
  there_->Send({{"kind", "beat"}});
  EXPECT_EQ(here_->Receive().size(), 1u);
  now = std::chrono::steady_clock::now();
  EXPECT_FALSE(here_->SilentFor(kLimit, now += 20 * kTick)) << "we stood still ourselves";
  while (!here_->SilentFor(kLimit, now += kTick)) {
    ASSERT_LT(now, std::chrono::steady_clock::now() + 40 * kTick);
  }
}

}  // namespace
}  // namespace lockstep
