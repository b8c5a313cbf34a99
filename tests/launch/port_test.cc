#include "lockstep/launch/port.h"

#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <optional>
#include <set>

namespace lockstep {
namespace {

/// Binds as c10d's store does and listens; -1 when it can't.
int Listen(int port) {
  const int fd = socket(AF_INET6, SOCK_STREAM, 0);
  const int on = 1;
  setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
  sockaddr_in6 address{};
  address.sin6_family = AF_INET6;
  address.sin6_port = htons(port);
  if (bind(fd, reinterpret_cast<sockaddr*>(&address), sizeof(address)) == 0 && listen(fd, 1) == 0) return fd;
  close(fd);
  return -1;
}

TEST(ReservedPort, IsRankZerosToListenOn) {
  auto port = std::make_optional(ReservedPort::Reserve(0).value());
  const int number = port->port();
  EXPECT_GT(number, 0);
  const auto refused = [&] {
    const auto again = ReservedPort::Reserve(number);
    return !again.ok() && again.status().message().find("is in use") != std::string::npos;
  };
  EXPECT_TRUE(refused()) << "while it is reserved";
  const int fd = Listen(number);
  EXPECT_GE(fd, 0);
  port.reset();
  EXPECT_TRUE(refused()) << "while somebody listens";
  close(fd);
  EXPECT_TRUE(ReservedPort::Reserve(number).ok());
}

TEST(ReservedPort, ManyDoNotCollide) {
  std::set<int> seen;
  std::vector<ReservedPort> ports;
  for (int i = 0; i < 200; ++i) {
    ports.push_back(ReservedPort::Reserve(0).value());
    EXPECT_TRUE(seen.insert(ports.back().port()).second);
  }
}

}  // namespace
}  // namespace lockstep
