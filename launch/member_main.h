#pragma once

#include <absl/status/status.h>

#include <functional>

#include "lockstep/comm/process_group.h"

namespace lockstep {

/// RankMain for ranks of which one may go without the others, as the workers of an asynchronous parameter server may.
/// No connection is made between them: the group that `body` gets has the store, rank and world size, and groups of
/// some ranks are made from it (NewSubGroup), but it communicates nothing itself. Nobody waits for the others at the
/// end. Errors are printed as RankMain does. Of `options` the place of the meeting and the timeout count.
int MemberMain(const ProcessGroupOptions& options, const std::function<absl::Status(const ProcessGroupPtr&)>& body);

}  // namespace lockstep
