#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/data/stream.h"

namespace lockstep {

struct RecordStreamOptions {
  /// Bytes of each record; 0: records are lines, without their ends (LF or CRLF).
  size_t record_bytes = 0;
  /// A line that is longer is an error.
  size_t max_line_bytes = size_t{64} << 20;
  /// Deal the files out anew in each epoch, in an order drawn with this seed.
  std::optional<uint64_t> shuffle_seed;
};

/// The records of files, file after file. The files are dealt out to the shards, the i-th to shard i modulo their
/// number: have at least as many files as shards, of about the same size. The streams throw c10::Error, with the file,
/// for one that can't be read, a line that is too long, or a last record that is cut short.
StreamFactory<std::string> RecordStreams(std::vector<std::string> files, RecordStreamOptions options = {});

}  // namespace lockstep
