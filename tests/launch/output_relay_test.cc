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

TEST(OutputRelay, ShowsABarThatReturnsToTheBeginOfItsLine) {
  OutputRelay::Stream stream;
  stream.prefix = "> ";
  EXPECT_EQ(Relayed(stream, {"\r1%", "\r2%", "\r", "3%", "\n"}), "> \r> 1%\r> 2%\r> 3%\n");
  EXPECT_EQ(Relayed(stream, {"a\r\nb\r", "\nc\r", "d\n"}), "> a\r\n> b\r\n> c\r> d\n");
}

TEST(OutputRelay, ABarComesToTheConsoleBeforeItsEnd) {
  int ends[2];
  ASSERT_EQ(pipe(ends), 0);
  ConsoleWriter console(ends[1]);
  OutputRelay relay(console, console);
  const int end = relay.Add({});
  for (const std::string text : {"1%\r", "2%\r"}) {
    ASSERT_EQ(write(end, text.data(), text.size()), static_cast<ssize_t>(text.size()));
    relay.Pump();
  }
  char shown[3];
  EXPECT_EQ(read(ends[0], shown, sizeof(shown)), 3);
  EXPECT_EQ(std::string(shown, 3), "1%\r");
  close(end);
  close(ends[0]);
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
