#pragma once

#include <absl/status/statusor.h>

#include <string>
#include <vector>

namespace lockstep {

/// The hosts of Slurm's short form, in its order: "node[001-003,7],other-a[1-2]b" is node001, node002, node003, node7,
/// other-a1b, other-a2b. Several brackets in a name count like digits, the last one fastest. InvalidArgument says what
/// is wrong in the list.
absl::StatusOr<std::vector<std::string>> ExpandHostList(const std::string& list);

/// Tasks of each host from "2(x3),1": 2, 2, 2, 1.
absl::StatusOr<std::vector<int>> ExpandTaskCounts(const std::string& counts);

}  // namespace lockstep
