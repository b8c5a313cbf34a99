#include "lockstep/comm/shm/internal/memory_limit.h"

#include <algorithm>
#include <fstream>
#include <limits>

namespace lockstep::shm {
namespace {

/// The number in a file of one number; the largest there is when the file is absent or says "max".
uint64_t ReadNumber(const std::string& path) {
  std::ifstream file(path);
  uint64_t value = 0;
  return file >> value ? value : std::numeric_limits<uint64_t>::max();
}

/// The number behind `key` in lines of "key number"; 0 when absent.
uint64_t ReadField(const std::string& path, const std::string& key) {
  std::ifstream file(path);
  std::string line_key, rest;
  for (uint64_t value = 0; file >> line_key >> value; std::getline(file, rest)) {
    if (line_key == key) return value;
  }
  return 0;
}

/// A control group and those above it.
void Narrow(MemoryLimit& limit, const std::string& root, std::string path, const char* max, const char* current) {
  while (true) {
    const std::string folder = root + path;
    const uint64_t most = ReadNumber(folder + "/" + max), used = ReadNumber(folder + "/" + current);
    if (most != std::numeric_limits<uint64_t>::max() && used != std::numeric_limits<uint64_t>::max()) {
      // Pages of files are given up when memory is short.
      const uint64_t taken = used - std::min(used, ReadField(folder + "/memory.stat", "inactive_file") +
                                                       ReadField(folder + "/memory.stat", "active_file"));
      const uint64_t free = most - std::min(most, taken);
      if (free < limit.free_bytes) limit = {free, "the control group's limit (" + folder + "/" + max + ")"};
    }
    if (path.empty() || path == "/") return;
    path.resize(path.rfind('/'));
  }
}

}  // namespace

MemoryLimit FreeMemory() {
  MemoryLimit limit{std::numeric_limits<uint64_t>::max(), "the machine"};
  if (const uint64_t kilobytes = ReadField("/proc/meminfo", "MemAvailable:"); kilobytes != 0) {
    limit.free_bytes = kilobytes * 1024;
  }
  std::ifstream groups("/proc/self/cgroup");  // lines of "number:controllers:/path"
  for (std::string line; std::getline(groups, line);) {
    const size_t first = line.find(':'), second = line.find(':', first + 1);
    if (first == std::string::npos || second == std::string::npos) continue;
    const std::string controllers = line.substr(first + 1, second - first - 1), path = line.substr(second + 1);
    if (controllers.empty()) Narrow(limit, "/sys/fs/cgroup", path, "memory.max", "memory.current");
    if (controllers == "memory") {
      Narrow(limit, "/sys/fs/cgroup/memory", path, "memory.limit_in_bytes", "memory.usage_in_bytes");
    }
  }
  return limit;
}

}  // namespace lockstep::shm
