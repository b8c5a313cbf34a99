#pragma once

#include <string>
#include <vector>

#include "lockstep/launch/internal/stream_choice.h"

namespace lockstep {

/// Where the ranks' output goes.
struct OutputPlan {
  bool prefix = false;     ///< Lines on the console begin with the rank's name; otherwise ranks write to it directly.
  StreamChoice redirects;  ///< Into files only.
  StreamChoice tee;        ///< Into files and to the console.
  std::string log_dir;     ///< Folder for those files; empty: one for temporary files. /dev/null: no files at all.
  std::vector<int> shown;  ///< Local ranks whose output comes to the console; empty: all.
  std::string
      line_prefix;  ///< With ${role_name}, ${rank} and ${local_rank}; empty: "[rank0]: ", "[default0]:" for tee.
  std::vector<std::string> stdout_filters, stderr_filters;  ///< Lines with one of these go to a file of their own, too.

  bool Relayed() const { return prefix || redirects.Any() || tee.Any() || !shown.empty(); }
};

}  // namespace lockstep
