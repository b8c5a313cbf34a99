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

bool IsHalf(const at::Tensor& data) { return data.scalar_type() == at::kHalf || data.scalar_type() == at::kBFloat16; }

/// Hosts have different numbers of ranks, so that a mean of their means would be wrong: it is the sum divided by the
/// number of ranks. Of half types, whose range the sum might leave, it is the sum of hosts' means, weighed before.
c10d::ReduceOp InHost(const c10d::ReduceOp& reduction, const at::Tensor& data) {
  return IsAverage(reduction) && !IsHalf(data) ? c10d::ReduceOp(c10d::ReduceOp::SUM) : reduction;
}
c10d::ReduceOp Between(const c10d::ReduceOp& reduction) {
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

std::vector<TwoLevels::Piece> TwoLevels::Cut(const at::Tensor& data, int first_lane) const {
  const int64_t element = static_cast<int64_t>(data.element_size()), bytes = data.numel() * element;
  const int64_t wanted = std::clamp(bytes / lanes_, kLeastPiece, kMostPiece);
  const int64_t step = (wanted + kAlign - 1) / kAlign * kAlign / element;
  const at::Tensor flat = data.view({-1});
  std::vector<Piece> pieces;
  for (int64_t begin = 0; begin < flat.numel() || pieces.empty(); begin += step) {
    const int lane = (first_lane + static_cast<int>(pieces.size())) % lanes_;
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

void TwoLevels::Weigh(at::Tensor data, const c10d::ReduceOp& reduction) const {
  if (!IsAverage(reduction) || !IsHalf(data)) return;
  data.mul_(static_cast<double>(ranks_[host_].size()) / static_cast<double>(host_of_.size()));
}

void TwoLevels::Divide(at::Tensor data, const c10d::ReduceOp& reduction) const {
  if (IsAverage(reduction) && !IsHalf(data)) data.div_(static_cast<int64_t>(host_of_.size()));
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
  options.reduceOp = Between(reduction);
  for (Piece& piece : pieces) {
    ReduceInHost(piece.data, InHost(reduction, data), piece.lane, Left(deadline));
    if (!IsMine(piece)) continue;
    Weigh(piece.data, reduction);
    options.timeout = Left(deadline);
    Tensors tensors = {piece.data};
    piece.work = between_->allreduce(tensors, options);
  }
  for (Piece& piece : pieces) {
    if (piece.work) {
      monitor_->Wait(*piece.work);
      Divide(piece.data, reduction);
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
  options.reduceOp = Between(reduction);
  options.rootRank = host_of_[root];
  for (Piece& piece : pieces) {
    ReduceInHost(piece.data, InHost(reduction, data), piece.lane, Left(deadline));
    if (!IsMine(piece)) continue;
    Weigh(piece.data, reduction);
    options.timeout = Left(deadline);
    Tensors tensors = {piece.data};
    piece.work = between_->reduce(tensors, options);
  }
  for (Piece& piece : pieces) {
    if (piece.work) {
      monitor_->Wait(*piece.work);
      if (here) Divide(piece.data, reduction);
    }
    // To the root, and to the others, who may have anything.
    if (here) BroadcastInHost(piece.data, piece.lane, Left(deadline) + kLonger);
  }
}

void TwoLevels::Broadcast(at::Tensor data, int root, Clock::time_point deadline) {
  const at::NoGradGuard no_grad;
  const bool here = host_of_[root] == host_;
  const std::vector<int>& mates = ranks_[host_of_[root]];
  const int number = static_cast<int>(std::find(mates.begin(), mates.end(), root) - mates.begin());
  if (ranks_.size() == 1) return BroadcastInHost(data, number, Left(deadline));
  // The root itself has the first lane, if it has one: that need not wait for its host.
  std::vector<Piece> pieces = Cut(data, number < lanes_ ? number : 0);
  c10d::BroadcastOptions options;
  options.rootRank = host_of_[root];
  const auto send = [&] {
    for (Piece& piece : pieces) {
      if (!IsMine(piece)) continue;
      options.timeout = Left(deadline);
      Tensors tensors = {piece.data};
      piece.work = between_->broadcast(tensors, options);
    }
  };
  if (rank_ == root || !here) send();
  if (here) BroadcastInHost(data, number, Left(deadline));
  if (rank_ != root && here) send();
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

/// Each lane broadcasts the tensors of its ranks, host by host; what has come, the host's ranks exchange while the rest
/// is under way.
void TwoLevels::AllGather(const Tensors& outputs, const at::Tensor& input, Clock::time_point deadline) {
  const at::NoGradGuard no_grad;
  if (input.numel() == 0) return;
  if (outputs[rank_].data_ptr() != input.data_ptr()) outputs[rank_].view({-1}).copy_(input.view({-1}));
  const int hosts = static_cast<int>(ranks_.size());
  std::vector<c10::intrusive_ptr<c10d::Work>> works(hosts);
  for (int host = 0; host < hosts && between_; ++host) {
    c10d::BroadcastOptions options;
    options.rootRank = host;
    options.timeout = Left(deadline);
    Tensors tensors = {outputs[ranks_[host][me_]]};
    works[host] = between_->broadcast(tensors, options);
  }
  for (int i = 0; i < hosts; ++i) {
    const int host = (host_ + i) % hosts;  // my own first: it waits for nobody
    if (works[host]) monitor_->Wait(*works[host]);
    if (!local_) continue;
    std::vector<Tensors> all(1);
    for (int rank : ranks_[host]) all[0].push_back(outputs[rank]);
    Tensors mine = {outputs[ranks_[host][me_]]};
    c10d::AllgatherOptions options;
    options.timeout = Left(deadline) + kLonger;
    local_->allgather(all, mine, options)->wait();
  }
}

/// The same backwards: for one host after the other, its ranks' parts are reduced in this host, then in each lane.
void TwoLevels::ReduceScatter(at::Tensor output, const Tensors& inputs, const c10d::ReduceOp& reduction,
                              Clock::time_point deadline) {
  const at::NoGradGuard no_grad;
  if (output.numel() == 0) return;
  std::vector<c10::intrusive_ptr<c10d::Work>> works;
  for (int host = 0; host < static_cast<int>(ranks_.size()); ++host) {
    at::Tensor part = host == host_ ? output : at::empty_like(output);
    if (local_) {
      std::vector<Tensors> all(1);
      for (int rank : ranks_[host]) all[0].push_back(inputs[rank]);
      Tensors parts = {part};
      c10d::ReduceScatterOptions options;
      options.reduceOp = InHost(reduction, part);
      options.timeout = Left(deadline);
      local_->reduce_scatter(parts, all, options)->wait();
    } else {
      part.view({-1}).copy_(inputs[ranks_[host][0]].view({-1}));
    }
    if (!between_) continue;
    Weigh(part, reduction);
    c10d::ReduceOptions options;
    options.reduceOp = Between(reduction);
    options.rootRank = host;
    options.timeout = Left(deadline);
    Tensors tensors = {part};
    works.push_back(between_->reduce(tensors, options));
  }
  for (const auto& work : works) monitor_->Wait(*work);
  Divide(output, reduction);
}

}  // namespace lockstep::hierarchical
