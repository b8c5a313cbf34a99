#pragma once

#include <string>
#include <vector>

namespace lockstep {

/// Cores by number, in the order in which they are shared out.
using CoreList = std::vector<int>;

/// Which of `groups` (single cores, or those of NUMA nodes) each of `ranks` ranks gets: neighbours stay together, and
/// where there are more ranks than groups, several have the same.
std::vector<CoreList> ShareOut(const std::vector<CoreList>& groups, int ranks);

/// "0-3,8" as the kernel writes lists of cores.
CoreList ParseCoreList(const std::string& text);

/// The cores for each rank among those that this process may use, by NUMA nodes or one share each, and a line about it
/// on standard error. Nothing where they can't be read.
std::vector<CoreList> BindRanks(bool by_numa_node, int ranks);

}  // namespace lockstep
