#include "lockstep/launch/internal/core_binding.h"

#include <absl/strings/numbers.h>
#include <absl/strings/str_cat.h>
#include <absl/strings/str_join.h>
#include <absl/strings/str_split.h>
#include <glob.h>
#include <sched.h>

#include <algorithm>
#include <cstdio>
#include <fstream>
#include <tuple>

namespace lockstep {
namespace {

constexpr int kMostCores = 64 * CPU_SETSIZE;

CoreList AllowedCores() {
  CoreList cores;
  // The kernel wants room for all cores that there may be, and a single set has it for 1024.
  for (int room = CPU_SETSIZE; room <= kMostCores; room *= 2) {
    std::vector<cpu_set_t> set(static_cast<size_t>(room / CPU_SETSIZE));
    const size_t size = set.size() * sizeof(cpu_set_t);
    if (sched_getaffinity(0, size, set.data()) != 0) continue;
    for (int core = 0; core < room; ++core) {
      if (CPU_ISSET_S(core, size, set.data())) cores.push_back(core);
    }
    break;
  }
  return cores;
}

int ReadInt(const std::string& path) {
  int value = 0;
  std::ifstream(path) >> value;
  return value;
}

/// The hardware threads of one core side by side.
void SortByPlace(CoreList& cores) {
  const auto place = [](int core) {
    const std::string folder = absl::StrCat("/sys/devices/system/cpu/cpu", core, "/topology/");
    return std::make_tuple(ReadInt(folder + "physical_package_id"), ReadInt(folder + "core_id"), core);
  };
  std::sort(cores.begin(), cores.end(), [&](int a, int b) { return place(a) < place(b); });
}

/// The allowed cores of each NUMA node that has some.
std::vector<CoreList> NumaNodes(const CoreList& allowed) {
  std::vector<std::pair<int, CoreList>> nodes;
  glob_t found{};
  glob("/sys/devices/system/node/node[0-9]*", 0, nullptr, &found);
  for (size_t i = 0; i < found.gl_pathc; ++i) {
    const std::string path = found.gl_pathv[i];
    int number = 0;
    std::string text;
    std::getline(std::ifstream(path + "/cpulist"), text);
    CoreList cores;
    for (const int core : ParseCoreList(text)) {
      if (std::binary_search(allowed.begin(), allowed.end(), core)) cores.push_back(core);
    }
    if (absl::SimpleAtoi(path.substr(path.rfind('e') + 1), &number) && !cores.empty())
      nodes.emplace_back(number, cores);
  }
  globfree(&found);
  std::sort(nodes.begin(), nodes.end());
  std::vector<CoreList> groups;
  for (auto& [number, cores] : nodes) groups.push_back(std::move(cores));
  if (groups.empty()) groups.push_back(allowed);
  return groups;
}

}  // namespace

std::vector<CoreList> ShareOut(const std::vector<CoreList>& groups, int ranks) {
  const size_t count = groups.size(), of = static_cast<size_t>(ranks);
  std::vector<CoreList> shares(of);
  for (size_t rank = 0; rank < of; ++rank) {
    const size_t first = rank * count / of, end = std::max(first + 1, (rank + 1) * count / of);
    for (size_t group = first; group < end; ++group) {
      shares[rank].insert(shares[rank].end(), groups[group].begin(), groups[group].end());
    }
  }
  return shares;
}

CoreList ParseCoreList(const std::string& text) {
  CoreList cores;
  for (const std::string& part : std::vector<std::string>(absl::StrSplit(text, ',', absl::SkipWhitespace()))) {
    const std::vector<std::string> ends = absl::StrSplit(part, '-');
    int low = 0, high = 0;
    if (!absl::SimpleAtoi(ends.front(), &low) || !absl::SimpleAtoi(ends.back(), &high)) continue;
    for (int core = low; core <= high && core < kMostCores; ++core) cores.push_back(core);
  }
  return cores;
}

std::vector<CoreList> BindRanks(bool by_numa_node, int ranks) {
  CoreList allowed = AllowedCores();
  if (allowed.empty()) {
    std::fprintf(stderr, "lockstep: local ranks are not bound: the cores of this process can't be read\n");
    return {};
  }
  std::vector<CoreList> groups;
  if (by_numa_node) {
    groups = NumaNodes(allowed);
  } else {
    SortByPlace(allowed);
    for (const int core : allowed) groups.push_back({core});
  }
  std::vector<CoreList> shares = ShareOut(groups, ranks);
  std::string said;
  for (CoreList& share : shares) {
    std::sort(share.begin(), share.end());
    absl::StrAppend(&said, said.empty() ? "" : "; ", absl::StrJoin(share, ","));
  }
  std::fprintf(stderr, "lockstep: local ranks are bound to %s: %s\n",
               by_numa_node
                   ? absl::StrCat("the cores of ", groups.size(), " NUMA node", groups.size() == 1 ? "" : "s").c_str()
                   : "cores",
               said.c_str());
  return shares;
}

}  // namespace lockstep
