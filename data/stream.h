#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <optional>

namespace lockstep {

/// Data without random access: one sample after the other. Used by one thread.
template <typename Sample>
class Stream {
 public:
  virtual ~Stream() = default;
  /// The next sample, or nothing at the end. Throws what reading throws.
  virtual std::optional<Sample> Next() = 0;
};

/// Opens shard `shard` of `num_shards` for an epoch (from 0). The shards of an epoch together are all samples, each
/// once; the same numbers give the same samples in the same order. Called in the thread that reads the shard, so for
/// several at a time.
template <typename Sample>
using StreamFactory = std::function<std::unique_ptr<Stream<Sample>>(size_t shard, size_t num_shards, size_t epoch)>;

}  // namespace lockstep
