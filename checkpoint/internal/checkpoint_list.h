#pragma once

#include <absl/status/statusor.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace lockstep::internal {

/// A checkpoint of a folder.
struct ListedCheckpoint {
  std::string file;
  uint64_t epoch = 0, step = 0, bytes = 0;
  uint32_t crc32 = 0;
  std::optional<double> metric;  ///< The monitored one.
};

/// What `checkpoints.json` says, oldest first.
struct CheckpointList {
  bool more_is_better = false;
  std::vector<ListedCheckpoint> checkpoints;

  /// Of those with a metric that is a number, the best; null if there is none.
  const ListedCheckpoint* Best() const;
};

/// NotFound when there is no list, InvalidArgument for one that is damaged or of a version that is not known.
absl::StatusOr<CheckpointList> ReadCheckpointList(const std::string& folder);
absl::Status WriteCheckpointList(const CheckpointList& list, const std::string& folder);

/// Size and CRC-32 of a file.
absl::StatusOr<std::pair<uint64_t, uint32_t>> SizeAndChecksum(const std::string& path);

/// OK when the file is there with that size and checksum.
absl::Status CheckWhole(const ListedCheckpoint& checkpoint, const std::string& folder);

}  // namespace lockstep::internal
