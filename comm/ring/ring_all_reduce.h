#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>

#include "lockstep/comm/collectives.h"

namespace lockstep {

/// What this rank has put on the wire and taken off it.
struct Traffic {
  int64_t bytes_sent = 0;
  int64_t bytes_received = 0;
};

/// A finished step of the ring, for who wants to watch.
struct RingStep {
  enum class Phase { kReduceScatter, kAllGather };
  Phase phase = Phase::kReduceScatter;
  int step = 0;            ///< From 0 to N − 2, in each phase.
  int sent_block = 0;      ///< The block that went to rank r + 1.
  int received_block = 0;  ///< The block that came from rank r − 1.
};

/// Sums `tensor` over the ranks of `group`, in place, with nothing but send and recv between neighbours: on any
/// backend, for any number of elements (also fewer than ranks), in any dtype that can be added. Readable before it is
/// fast.
///
/// The tensor is cut into N blocks. Reduce-scatter: in step s rank r sends block (r − 1 − s) mod N to rank r + 1 and
/// adds what it receives to block (r − 2 − s) mod N, so that after N − 1 steps it holds block r fully summed.
/// All-gather: in step s it sends block (r − s) mod N and receives block (r − 1 − s) mod N; after N − 1 steps everyone
/// holds all. Each rank sends 2 (N − 1) / N of the tensor's bytes, whatever N is (Patarasuk and Yuan, J. Parallel
/// Distrib. Comput. 2009).
///
/// `watch` (may be null) is called after each step, on every rank. A null group is a world of one. Collective; throws
/// c10's exceptions.
Traffic RingAllReduce(at::Tensor tensor, const ProcessGroupPtr& group,
                      const std::function<void(const RingStep&)>& watch = nullptr);

/// The same result the naive way: everyone sends all to rank 0, which adds and sends all back. Rank 0 moves N − 1 times
/// the tensor's bytes in each direction.
Traffic NaiveAllReduce(at::Tensor tensor, const ProcessGroupPtr& group);

/// Block `block` of N of a one-dimensional tensor: a view. Sizes differ by one at most; some are empty where there are
/// fewer elements than blocks.
at::Tensor RingBlock(const at::Tensor& flat, int block, int num_blocks);

}  // namespace lockstep
