#pragma once

#include <string>
#include <vector>

#include "lockstep/comm/collectives.h"

namespace lockstep {

// Collectives over strings, which may hold any bytes and may differ in length from rank to rank. They go over the
// backend of the CPU; a null group is a world of one. Errors as in collectives.h.

/// `root`'s text, on all ranks; the others' is ignored.
std::string BroadcastString(const std::string& text, const ProcessGroupPtr& group, int root = 0);

/// Every rank's text, by rank.
std::vector<std::string> AllGatherString(const std::string& text, const ProcessGroupPtr& group);

/// On `root`, every rank's text, by rank; nothing on the others.
std::vector<std::string> GatherString(const std::string& text, const ProcessGroupPtr& group, int root = 0);

/// `texts[rank]` of `root`; on the other ranks `texts` is empty.
std::string ScatterString(const std::vector<std::string>& texts, const ProcessGroupPtr& group, int root = 0);

}  // namespace lockstep
