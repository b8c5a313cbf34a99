#include "lockstep/comm/hierarchical/internal/two_levels.h"

#include <ATen/Functions.h>
#include <c10/core/GradMode.h>

#include <algorithm>
#include <utility>

#include "lockstep/comm/shm/shm_backend.h"

namespace lockstep::hierarchical {
namespace {

using Tensors = std::vector<at::Tensor>;
using std::chrono::milliseconds;

/// A piece is worth its own trip over the network from the least on; beyond the most, the next one had better begin.
constexpr int64_t kLeastPiece = 512 << 10, kMostPiece = 4 << 20;
constexpr int64_t kAlign = 64;  // bytes

/// A rank that waits for what another of its host brings from the network is told when that fails; its own patience
/// only has to be the longer one.
constexpr milliseconds kLonger = std::chrono::seconds(10);

milliseconds Left(TwoLevels::Clock::time_point deadline) {
  const auto left = std::chrono::duration_cast<milliseconds>(deadline - TwoLevels::Clock::now());
  return std::max(left, milliseconds(1));
}

bool IsAverage(const c10d::ReduceOp& reduction) { return reduction.op_ == c10d::ReduceOp::AVG; }

/// Hosts have different numbers of ranks, so that a mean of their means would be wrong.
c10d::ReduceOp InParts(const c10d::ReduceOp& reduction) {
  return IsAverage(reduction) ? c10d::ReduceOp(c10d::ReduceOp::SUM) : reduction;
}

}  // namespace

TwoLevels::TwoLevels(const Hosts& hosts, int rank, Links links, std::shared_ptr<LivenessMonitor> monitor)
    : host_of_(hosts.of),
      rank_(rank),
      host_(hosts.of[rank]),
      local_(std::move(links.local)),
      between_(std::move(links.between)),
      lanes_(links.lanes),
      monitor_(std::move(monitor)) {
  for (int host = 0; host < hosts.count(); ++host) {
    ranks_.push_back(hosts.ranks(host));
    even_ &= ranks_[host].size() == ranks_[0].size();
  }
  const std::vector<int>& mine = ranks_[host_];
  me_ = static_cast<int>(std::find(mine.begin(), mine.end(), rank_) - mine.begin());
}

std::vector<TwoLevels::Piece> TwoLevels::Cut(const at::Tensor& data) const {
  const int64_t element = static_cast<int64_t>(data.element_size()), bytes = data.numel() * element;
  const int64_t wanted = std::clamp(bytes / std::max(lanes_, 1), kLeastPiece, kMostPiece);
  const int64_t step = (wanted + kAlign - 1) / kAlign * kAlign / element;
  const at::Tensor flat = data.view({-1});
  std::vector<Piece> pieces;
  for (int64_t begin = 0; begin < flat.numel() || pieces.empty(); begin += step) {
    const int lane = static_cast<int>(pieces.size()) % std::max(lanes_, 1);
    pieces.push_back({flat.narrow(0, begin, std::min(step, flat.numel() - begin)), lane, nullptr});
  }
  return pieces;
}

void TwoLevels::ReduceInHost(at::Tensor data, const c10d::ReduceOp& reduction, int to, milliseconds timeout) {
  if (!local_) return;
  c10d::ReduceOptions options;
  options.reduceOp = reduction;
  options.rootRank = to;
  options.timeout = timeout;
  Tensors tensors = {std::move(data)};
  local_->reduce(tensors, options)->wait();
}

void TwoLevels::BroadcastInHost(at::Tensor data, int from, milliseconds timeout) {
  if (!local_) return;
  c10d::BroadcastOptions options;
  options.rootRank = from;
  options.timeout = timeout;
  Tensors tensors = {std::move(data)};
  local_->broadcast(tensors, options)->wait();
}

void TwoLevels::GiveUp(const std::string& reason) {
  if (local_) GiveUpShmBackend(*local_, reason);
}

void TwoLevels::AllReduce(at::Tensor data, const c10d::ReduceOp& reduction, Clock::time_point deadline) {
  const at::NoGradGuard no_grad;
  if (ranks_.size() == 1) {
    c10d::AllreduceOptions options;
    options.reduceOp = reduction;
    options.timeout = Left(deadline);
    Tensors tensors = {data};
    local_->allreduce(tensors, options)->wait();
    return;
  }
  std::vector<Piece> pieces = Cut(data);
  c10d::AllreduceOptions options;
  options.reduceOp = InParts(reduction);
  for (Piece& piece : pieces) {
    ReduceInHost(piece.data, options.reduceOp, piece.lane, Left(deadline));
    if (!IsMine(piece)) continue;
    options.timeout = Left(deadline);
    Tensors tensors = {piece.data};
    piece.work = between_->allreduce(tensors, options);
  }
  for (Piece& piece : pieces) {
    if (piece.work) {
      monitor_->Wait(*piece.work);
      if (IsAverage(reduction)) piece.data.div_(static_cast<int64_t>(host_of_.size()));
    }
    BroadcastInHost(piece.data, piece.lane, Left(deadline) + kLonger);
  }
}

void TwoLevels::Reduce(at::Tensor data, const c10d::ReduceOp& reduction, int root, Clock::time_point deadline) {
  const at::NoGradGuard no_grad;
  const bool here = host_of_[root] == host_;
  if (ranks_.size() == 1) return ReduceInHost(data, reduction, root, Left(deadline));
  std::vector<Piece> pieces = Cut(data);
  c10d::ReduceOptions options;
  options.reduceOp = InParts(reduction);
  options.rootRank = host_of_[root];
  for (Piece& piece : pieces) {
    ReduceInHost(piece.data, options.reduceOp, piece.lane, Left(deadline));
    if (!IsMine(piece)) continue;
    options.timeout = Left(deadline);
    Tensors tensors = {piece.data};
    piece.work = between_->reduce(tensors, options);
  }
  for (Piece& piece : pieces) {
    if (piece.work) {
      monitor_->Wait(*piece.work);
      if (here && IsAverage(reduction)) piece.data.div_(static_cast<int64_t>(host_of_.size()));
    }
    // To the root, and to the others, who may have anything.
    if (here) BroadcastInHost(piece.data, piece.lane, Left(deadline) + kLonger);
  }
}

void TwoLevels::Broadcast(at::Tensor data, int root, Clock::time_point deadline) {
  const at::NoGradGuard no_grad;
  const bool here = host_of_[root] == host_;
  const std::vector<int>& mates = ranks_[host_of_[root]];
  if (here) {
    BroadcastInHost(data, static_cast<int>(std::find(mates.begin(), mates.end(), root) - mates.begin()),
                    Left(deadline));
  }
  if (ranks_.size() == 1) return;
  std::vector<Piece> pieces = Cut(data);
  c10d::BroadcastOptions options;
  options.rootRank = host_of_[root];
  for (Piece& piece : pieces) {
    if (!IsMine(piece)) continue;
    options.timeout = Left(deadline);
    Tensors tensors = {piece.data};
    piece.work = between_->broadcast(tensors, options);
  }
  for (Piece& piece : pieces) {
    if (piece.work) monitor_->Wait(*piece.work);
    if (!here) BroadcastInHost(piece.data, piece.lane, Left(deadline) + kLonger);
  }
}

void TwoLevels::Barrier(Clock::time_point deadline) {
  const auto in_host = [&](milliseconds timeout) {
    if (!local_) return;
    c10d::BarrierOptions options;
    options.timeout = timeout;
    local_->barrier(options)->wait();
  };
  in_host(Left(deadline));
  if (ranks_.size() == 1) return;
  if (me_ == 0) {
    c10d::BarrierOptions options;
    options.timeout = Left(deadline);
    monitor_->Wait(*between_->barrier(options));
  }
  in_host(Left(deadline) + kLonger);
}

void TwoLevels::AllGather(const Tensors& outputs, const at::Tensor& input, Clock::time_point deadline) {
  const at::NoGradGuard no_grad;
  if (input.numel() == 0) return;
  const int64_t n = input.numel(), hosts = static_cast<int64_t>(ranks_.size()),
                mates = static_cast<int64_t>(ranks_[0].size());
  c10d::AllgatherOptions options;
  // Of the ranks with my number on all hosts, then of all.
  at::Tensor flat = input.view({-1}), lane = flat, all;
  if (between_) {
    lane = at::empty({hosts * n}, input.options());
    options.timeout = Left(deadline);
    monitor_->Wait(*between_->_allgather_base(lane, flat, options));
  }
  all = lane;
  if (local_) {
    all = at::empty({mates * hosts * n}, input.options());
    options.timeout = Left(deadline) + kLonger;
    local_->_allgather_base(all, lane, options)->wait();
  }
  all = all.view({mates, hosts, n});
  for (int64_t host = 0; host < hosts; ++host) {
    for (int64_t mate = 0; mate < mates; ++mate) {
      at::Tensor output = outputs[ranks_[host][mate]];
      output.copy_(all[mate][host].view(output.sizes()));
    }
  }
}

void TwoLevels::ReduceScatter(at::Tensor output, const Tensors& inputs, const c10d::ReduceOp& reduction,
                              Clock::time_point deadline) {
  const at::NoGradGuard no_grad;
  if (output.numel() == 0) return;
  const int64_t n = output.numel(), hosts = static_cast<int64_t>(ranks_.size()),
                mates = static_cast<int64_t>(ranks_[0].size());
  c10d::ReduceScatterOptions options;
  options.reduceOp = InParts(reduction);
  // For each rank of this host, what the ranks with its number are to have; this host's sum of what mine are to have.
  at::Tensor all = at::empty({mates, hosts, n}, output.options()), lane = all;
  for (int64_t mate = 0; mate < mates; ++mate) {
    for (int64_t host = 0; host < hosts; ++host) all[mate][host].copy_(inputs[ranks_[host][mate]].view({-1}));
  }
  if (local_) {
    lane = at::empty({hosts, n}, output.options());
    options.timeout = Left(deadline);
    local_->_reduce_scatter_base(lane, all, options)->wait();
  }
  at::Tensor mine = lane.view({-1});
  if (between_) {
    mine = at::empty({n}, output.options());
    lane = lane.view({-1});
    options.timeout = Left(deadline);
    monitor_->Wait(*between_->_reduce_scatter_base(mine, lane, options));
  }
  if (IsAverage(reduction)) mine.div_(static_cast<int64_t>(host_of_.size()));
  output.copy_(mine.view(output.sizes()));
}

}  // namespace lockstep::hierarchical
