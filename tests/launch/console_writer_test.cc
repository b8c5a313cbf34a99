#include "lockstep/launch/internal/console_writer.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <string>

namespace lockstep {
namespace {

/// What comes out of the pipe until it is closed.
std::string ReadAll(int fd) {
  std::string text;
  char buffer[4096];
  for (ssize_t n; (n = read(fd, buffer, sizeof(buffer))) > 0;) text.append(buffer, static_cast<size_t>(n));
  return text;
}

TEST(ConsoleWriter, SaysWhatIsLeftOutThoughNothingFollows) {
  int ends[2];
  ASSERT_EQ(pipe(ends), 0);
  {
    ConsoleWriter writer(ends[1], /*most_bytes=*/10);
    writer.Write("0123456789\n");
  }
  close(ends[1]);
  EXPECT_EQ(ReadAll(ends[0]), "lockstep: 11 bytes of output are left out here, which nobody read in time\n");
  close(ends[0]);
}

}  // namespace
}  // namespace lockstep
