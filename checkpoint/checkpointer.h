#pragma once

#include <absl/status/statusor.h>

#include <cstddef>
#include <map>
#include <string>
#include <thread>
#include <vector>

#include "lockstep/checkpoint/checkpoint_writer.h"
#include "lockstep/checkpoint/snapshot.h"
#include "lockstep/comm/collectives.h"

namespace lockstep {

struct CheckpointerOptions {
  std::string folder;
  /// A file's name without ending: {epoch}, {step}, or a metric as {val_accuracy} or {val_accuracy:.4f}; "none" for a
  /// metric of a moment that has none, inside an epoch.
  std::string name = "step-{step}";
  /// The newest so many are kept; 0: all. Those of a later step than the one that is saved are dropped: a run has gone
  /// on from an earlier one.
  size_t keep_last = 3;
  size_t keep_best = 0;  ///< And the best so many by `monitor`.
  std::string monitor;   ///< A metric; needed for keep_best.
  bool more_is_better = false;
  bool weights_only = false;     ///< Only the state's "model" is saved.
  bool background = true;        ///< A thread writes a copy, so that training waits only for that.
  bool failure_is_error = true;  ///< A save that failed (a full disk) is an error of the next call; else a warning.
};

/// When a checkpoint is made.
struct CheckpointMoment {
  size_t epoch = 0, step = 0;  ///< Step: over all epochs.
  std::map<std::string, double> metrics{};
};

/// Keeps checkpoints of a run in a folder of its own, written by rank 0: the newest and the best, each whole or not at
/// all. Files end in .pth, whatever the writer. `checkpoints.json` lists them, oldest first, with sizes and checksums,
/// and `latest` names the newest; both are written after the file and before older ones are removed, so that a crash at
/// any moment leaves a list of whole files.
class Checkpointer {
 public:
  /// Temporary files that a crash has left in the folder are removed. `writer` outlives this. Throws c10::Error for
  /// options that make no sense.
  Checkpointer(CheckpointerOptions options, CheckpointWriter& writer, ProcessGroupPtr group);
  /// Waits for what is being written.
  ~Checkpointer();
  Checkpointer(const Checkpointer&) = delete;
  Checkpointer& operator=(const Checkpointer&) = delete;

  /// Saves `state`, of which rank 0's counts. In the background: returns when it is copied, and the error is that of
  /// the save before. All ranks get the same result. Errors: what the writer says, with the path; InvalidArgument for a
  /// name that can't be made of the moment. Collective.
  absl::Status Save(const Value& state, const CheckpointMoment& moment);
  /// Waits for the last save and returns its result, on all ranks the same. Collective.
  absl::Status Wait();

  /// The newest checkpoint of a folder that is whole by its size and checksum; others are named in the log. Where none
  /// is, as after a crash with one file that is always written anew, or without a list: the newest that can be read.
  /// NotFound if there is none.
  static absl::StatusOr<std::string> Latest(const std::string& folder);
  /// The same for the best by the monitored metric.
  static absl::StatusOr<std::string> Best(const std::string& folder);

 private:
  absl::StatusOr<std::string> FileName(const CheckpointMoment& moment) const;
  absl::Status Write(const Value& state, const std::string& file, const CheckpointMoment& moment);

  const CheckpointerOptions options_;
  CheckpointWriter& writer_;
  const ProcessGroupPtr group_;
  Snapshot snapshot_;
  std::thread thread_;
  absl::Status last_;  // of the thread, or of what was written at once
};

}  // namespace lockstep
