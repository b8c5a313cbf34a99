#pragma once

#include <absl/status/status.h>

#include <functional>

#include "lockstep/comm/process_group.h"

namespace lockstep {

/// Runs the body of one rank and returns the process's exit code: joins the process group, calls `body`, and leaves
/// the group. An error or exception becomes one line on stderr, "error: …", with the rank in front in a world of more
/// than one; where the ranks have agreed on an error, rank 0 alone prints it. A status of EndWithCode, the same on all
/// ranks, is no error: rank 0 prints its message and all end with its code. When a collective fails the line says
/// which rank went and why, as far as the others can tell.
int RankMain(const ProcessGroupOptions& options, const std::function<absl::Status(const ProcessGroupPtr&)>& body);

}  // namespace lockstep
