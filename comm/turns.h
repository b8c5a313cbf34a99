#pragma once

#include <functional>

#include "lockstep/comm/collectives.h"

namespace lockstep {

// Work that one rank does for others: downloads, caches, folders. An exception that the one throws is thrown on all
// ranks, so that none waits for what will never come. Collective; a null group is a world of one.

/// Rank 0 calls `work`; the others return when it is done.
void OnRankZero(const std::function<void()>& work, const ProcessGroupPtr& group);

/// On each host the rank with local rank 0 calls `work` first, then, when all of those are done, the others do: the
/// first fills a cache that the others find.
void LocalRankFirst(const std::function<void()>& work, const ProcessGroupPtr& group, int local_rank);

}  // namespace lockstep
