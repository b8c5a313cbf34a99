#pragma once

#include <string>
#include <vector>

#include "lockstep/metrics/internal/draw_run.h"

namespace lockstep::internal {

/// A page that needs nothing else: the picture, tables, notes, and a script that shows values under the mouse. Without
/// scripts all but that is there.
std::string HtmlPage(const std::string& title, const std::string& svg, const std::vector<Table>& tables,
                     const std::vector<std::string>& notes);

}  // namespace lockstep::internal
