#pragma once

#include <ctime>
#include <string>

namespace lockstep {

/// The rank that failed first, which is why the others did.
struct FirstFailure {
  int rank = 0, local_rank = 0, process = 0;
  std::string host;
  int code = 0;    ///< Exit code; 128 + signal for a killed one.
  int signal = 0;  ///< 0: not killed.
  std::time_t time = 0;
  std::string error_message;  ///< From the rank's error file (TORCHELASTIC_ERROR_FILE); empty: it wrote none.
  std::string last_lines;     ///< Of its standard error; empty where that is not known.
};

/// "rank 1 (process 12) was killed by signal 9 (Killed)", "rank 1 (process 12) ended with code 7".
std::string HowItEnded(const FirstFailure& failure);

/// Some lines for people, without a rank's words that they have just read.
std::string Describe(const FirstFailure& failure);

/// The message in an error file as torchelastic's `record` writes it, or any text; empty where there is none. One over
/// 64 KiB is cut.
std::string ReadErrorFile(const std::string& path);

}  // namespace lockstep
