#pragma once

#include <ATen/core/Tensor.h>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include <string>
#include <vector>

namespace lockstep {

/// A group of ranks. Null stands for a world of one: everything here that takes a group takes null too, and then
/// communicates with nobody.
using ProcessGroupPtr = c10::intrusive_ptr<c10d::ProcessGroup>;

// All of these are collective (every rank of the group calls them, in the same order), block until the result is
// there, and take a null group for a world of one. They throw c10's exceptions when a peer is gone or time is up. One
// thread at a time may use a group.

/// 0 for null.
int GetRank(const ProcessGroupPtr& group);
/// 1 for null.
int GetWorldSize(const ProcessGroupPtr& group);

/// In place; same shape and dtype on all ranks.
void AllReduce(at::Tensor tensor, const ProcessGroupPtr& group,
               const c10d::ReduceOp& op = c10d::ReduceOp(c10d::ReduceOp::SUM));

/// In place: `root`'s values on all ranks.
void Broadcast(at::Tensor tensor, const ProcessGroupPtr& group, int root = 0);

/// Every rank's tensor, by rank; same shape and dtype on all ranks.
std::vector<at::Tensor> AllGather(const at::Tensor& tensor, const ProcessGroupPtr& group);

/// Every rank's text, by rank; lengths may differ.
std::vector<std::string> AllGatherString(const std::string& text, const ProcessGroupPtr& group);

/// Whether any rank says yes.
bool AnyRank(bool mine, const ProcessGroupPtr& group);

/// Returns when every rank has come here.
void Barrier(const ProcessGroupPtr& group);

}  // namespace lockstep
