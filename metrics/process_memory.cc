#include "lockstep/metrics/process_memory.h"

#include <absl/strings/match.h>
#include <absl/strings/numbers.h>
#include <absl/strings/str_split.h>
#include <sys/resource.h>

#include <fstream>
#include <string>
#include <vector>

namespace lockstep {

int64_t PeakMemory() {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    // VmHWM:      1234 kB
    if (!absl::StartsWith(line, "VmHWM:")) continue;
    const std::vector<std::string> words = absl::StrSplit(line, absl::ByAnyChar(" \t"), absl::SkipEmpty());
    int64_t kilobytes = 0;
    if (words.size() > 1 && absl::SimpleAtoi(words[1], &kilobytes)) return kilobytes * 1024;
  }
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return int64_t{usage.ru_maxrss} * 1024;
}

bool ResetPeakMemory() {
  std::ofstream file("/proc/self/clear_refs");
  file << "5" << std::flush;  // proc(5)
  return file.good();
}

}  // namespace lockstep
