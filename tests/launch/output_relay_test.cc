#include "lockstep/launch/internal/output_relay.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include "lockstep/launch/internal/console_writer.h"

namespace lockstep {
namespace {

/// A file that has no name.
class Scratch {
 public:
  int fd() const { return fileno(file_.get()); }

  std::string Text() const {
    std::string text(static_cast<size_t>(lseek(fd(), 0, SEEK_END)), '\0');
    EXPECT_EQ(pread(fd(), text.data(), text.size(), 0), static_cast<ssize_t>(text.size()));
    return text;
  }

 private:
  const std::unique_ptr<std::FILE, int (*)(std::FILE*)> file_{std::tmpfile(), std::fclose};
};

/// What comes to the console of ranks that write `texts` one after the other.
std::string Relayed(const OutputRelay::Stream& stream, const std::vector<std::string>& texts) {
  const Scratch console;
  {
    ConsoleWriter out(console.fd()), err(console.fd());
    OutputRelay relay(out, err);
    const int end = relay.Add(stream);
    for (const std::string& text : texts) {
      EXPECT_EQ(write(end, text.data(), text.size()), static_cast<ssize_t>(text.size()));
      relay.Pump();
    }
    close(end);
    relay.Finish();
  }
  return console.Text();
}

TEST(OutputRelay, JoinsTheParts) {
  OutputRelay::Stream stream;
  stream.prefix = "> ";
  EXPECT_EQ(Relayed(stream, {"a", "b", "c\nd\ne", "f\n", "\n", "g"}), "> abc\n> d\n> ef\n> \n> g\n");
}

TEST(OutputRelay, CutsALineThatIsTooLong) {
  OutputRelay::Stream stream;
  const std::string part(32 << 10, 'x');
  const std::string text = Relayed(stream, std::vector<std::string>(513, part));
  EXPECT_EQ(text, std::string(513 * part.size(), 'x') + "\n");
  EXPECT_EQ(Relayed(stream, std::vector<std::string>(514, part)),
            std::string(513 * part.size(), 'x') + "\n" + part + "\n");
}

TEST(OutputRelay, SaysOnceThatAFileIsFull) {
  OutputRelay::Stream stream;
  stream.to_console = false;
  stream.file = open("/dev/full", O_WRONLY);
  ASSERT_GE(stream.file, 0);
  EXPECT_EQ(Relayed(stream, {"a\n", "b\n"}), "lockstep: /dev/full: output is lost: No space left on device\n");
}

}  // namespace
}  // namespace lockstep
