#pragma once

#include <absl/status/status.h>

#include <string>
#include <vector>

namespace lockstep {

struct ReportOptions {
  std::string title;  ///< Empty: made of the runs' names.
  /// Where it is said what was left out of damaged files, a line each; may be null. The page says it too.
  std::vector<std::string>* notes = nullptr;
};

/// Draws training runs from the files in their folders, config.json, metrics.jsonl, steps.jsonl (see MetricsLog) and
/// ranks.jsonl (see ResourceLog): loss, accuracy and learning rate, and tables of the configuration, the last epoch and
/// the ranks. Up to 10 runs are compared in one picture. Writes
///   <out_prefix>.html   one page that needs no network,
///   <out_prefix>.svg    and
///   <out_prefix>.png    the picture with its tables,
/// each of them whole or not at all. What is damaged in a run's files is left out and noted. Works in bounded memory,
/// for any number of steps. Errors name the folder or file: one that isn't there or holds no run, one that can't be
/// written.
absl::Status WriteReport(const std::vector<std::string>& run_folders, const std::string& out_prefix,
                         const ReportOptions& options = {});

}  // namespace lockstep
