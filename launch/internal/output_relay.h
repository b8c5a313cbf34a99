#pragma once

#include <poll.h>

#include <cstddef>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "lockstep/launch/internal/console_writer.h"

namespace lockstep {

/// Takes what ranks write through pipes, to files as it is and to the console in whole lines, and is always ready to
/// take more: no rank waits for the console. Not thread-safe.
class OutputRelay {
 public:
  struct Stream {
    int local_rank = 0;
    bool is_error = false;  ///< Standard error.
    bool to_console = true;
    std::string prefix;      ///< Before each line on the console.
    int file = -1;           ///< Gets everything; the relay closes it. -1: none.
    int filtered_file = -1;  ///< Gets lines with one of `filters`; stays the caller's. -1: none.
    std::vector<std::string> filters;
  };

  OutputRelay(ConsoleWriter& out, ConsoleWriter& err) : out_(out), err_(err) {}
  ~OutputRelay();
  OutputRelay(const OutputRelay&) = delete;
  OutputRelay& operator=(const OutputRelay&) = delete;

  /// A pipe's end to write to, which the caller closes once the rank has it; -1 with errno.
  int Add(const Stream& stream);

  /// What to wait for.
  void AddTo(std::vector<pollfd>& waited) const;

  /// Takes what is there now.
  void Pump();

  /// The same, and what has no end of line yet: the ranks have gone.
  void Finish();

  /// What the rank wrote last to standard error, at most 20 lines.
  std::string LastErrorLines(int local_rank) const;

 private:
  struct Open {
    Stream stream;
    int fd = -1;
    std::string line;  // begun
    std::string tail;  // of standard error
  };

  /// False at the end.
  bool Read(Open& open, size_t most);
  void Take(Open& open, const char* data, size_t size);
  void Emit(Open& open, size_t size);
  void Keep(int file, const char* data, size_t size);

  ConsoleWriter& out_;
  ConsoleWriter& err_;
  std::vector<std::unique_ptr<Open>> streams_;
  std::set<int> warned_;  // files that something could not be written to, which has been said
};

}  // namespace lockstep
