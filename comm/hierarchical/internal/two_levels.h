#pragma once

#include <ATen/core/Tensor.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "lockstep/comm/hosts.h"
#include "lockstep/comm/liveness.h"

namespace lockstep::hierarchical {

/// Collectives in two levels: inside of each host, and between the hosts.
///
/// The network is used in lanes: lane i is a backend of its own, between the i-th ranks of all hosts; there are as many
/// as the smallest host has ranks. A tensor is cut into pieces, and piece p goes through lane p mod lanes. In an
/// all-reduce the lane's rank of each host gets the host's sum of the piece, sends it on without waiting for it, and
/// the host goes on with the next; then the sums of all are broadcast inside of the host, piece by piece. So nothing
/// but one tensor's size a host goes over the network, both levels move at the same time, and since each number is
/// computed in one way in one place a level, all ranks have the same bits.
///
/// Every call returns when it is done. Tensors are on the CPU and contiguous. Throws what the backends throw. One
/// thread at a time.
class TwoLevels {
 public:
  using BackendPtr = c10::intrusive_ptr<c10d::Backend>;
  using Clock = std::chrono::steady_clock;

  struct Links {
    BackendPtr local;    ///< Of the ranks of this host, in their order; null for one alone. Made by MakeShmBackend.
    BackendPtr between;  ///< This rank's lane, in the order of the hosts; null where it has none, or there is one host.
    int lanes = 0;
  };

  /// `monitor`, of the whole group, looks after the ranks of other hosts while this one waits for the network.
  TwoLevels(const Hosts& hosts, int rank, Links links, std::shared_ptr<LivenessMonitor> monitor);

  /// Whether all hosts have as many ranks, which AllGather and ReduceScatter need.
  bool even() const { return even_; }

  void AllReduce(at::Tensor data, const c10d::ReduceOp& reduction, Clock::time_point deadline);
  /// On other ranks than `root` the tensor holds anything afterwards.
  void Reduce(at::Tensor data, const c10d::ReduceOp& reduction, int root, Clock::time_point deadline);
  void Broadcast(at::Tensor data, int root, Clock::time_point deadline);
  void Barrier(Clock::time_point deadline);
  /// `outputs`, by rank, are contiguous and have `input`'s size.
  void AllGather(const std::vector<at::Tensor>& outputs, const at::Tensor& input, Clock::time_point deadline);
  /// `inputs`, by rank, are contiguous and have `output`'s size.
  void ReduceScatter(at::Tensor output, const std::vector<at::Tensor>& inputs, const c10d::ReduceOp& reduction,
                     Clock::time_point deadline);

  /// Tells the ranks of this host, who may be waiting for this one, that it will not come.
  void GiveUp(const std::string& reason);

 private:
  struct Piece {
    at::Tensor data;
    int lane;
    c10::intrusive_ptr<c10d::Work> work;  ///< On the network; of this rank's lane alone.
  };
  std::vector<Piece> Cut(const at::Tensor& data, int first_lane = 0) const;
  bool IsMine(const Piece& piece) const { return piece.lane == me_ && between_; }
  void ReduceInHost(at::Tensor data, const c10d::ReduceOp& reduction, int to, std::chrono::milliseconds timeout);
  void BroadcastInHost(at::Tensor data, int from, std::chrono::milliseconds timeout);
  /// Of a mean what is done to this host's part before the network, and to the whole after it.
  void Weigh(at::Tensor data, const c10d::ReduceOp& reduction) const;
  void Divide(at::Tensor data, const c10d::ReduceOp& reduction) const;

  std::vector<std::vector<int>> ranks_;  // of each host
  std::vector<int> host_of_;             // by rank
  const int rank_, host_;
  int me_ = 0;  // among the ranks of this host
  bool even_ = true;
  const BackendPtr local_, between_;
  const int lanes_;
  const std::shared_ptr<LivenessMonitor> monitor_;
};

}  // namespace lockstep::hierarchical
