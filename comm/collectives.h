#pragma once

#include <ATen/core/Tensor.h>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include <chrono>
#include <cstdint>
#include <vector>

namespace lockstep {

/// A group of ranks. Null stands for a world of one: everything here that takes a group takes null too, and then
/// communicates with nobody.
using ProcessGroupPtr = c10::intrusive_ptr<c10d::ProcessGroup>;

/// Something under way. `wait()` returns when it is done, and throws what went wrong. For CUDA tensors it makes the
/// current stream wait instead, and not this thread: what is launched on that stream afterwards sees the result;
/// synchronise the stream or the device before you read the result on the host. The tensors stay alive until then; they
/// must not be changed.
using WorkPtr = c10::intrusive_ptr<c10d::Work>;

/// c10d::ReduceOp::SUM, AVG (sum ÷ world size), PRODUCT, MIN, MAX, BAND, BOR, BXOR. What a backend defines for which
/// dtypes is in docs/collectives.md; anything else throws an error with operation, dtype and backend. The sum of bools
/// is whether any is true.
using Reduction = c10d::ReduceOp::RedOpType;

/// 0 for null.
int GetRank(const ProcessGroupPtr& group);
/// 1 for null.
int GetWorldSize(const ProcessGroupPtr& group);

// All of these are collective: every rank of the group calls them, in the same order, with tensors of the same dtype
// and shape unless it says otherwise. Each comes in two forms. The plain one waits for the result; the other returns at
// once, and the tensors are not to be touched until its work is done. They throw c10::Error for what is wrong with the
// arguments, before anything is sent, and c10::DistBackendError when a rank is gone, does something else, or doesn't
// come in time. Tensors need not be contiguous. `root`, `to` and `from` are ranks of the group. A work's results are
// there once wait() has returned, isCompleted() has said so, or its future is complete. Several threads may use a
// group, as long as the order of its collectives is the same on all ranks.

/// `tensor` becomes the reduction over all ranks, on all ranks.
void AllReduce(at::Tensor tensor, const ProcessGroupPtr& group, Reduction reduction = c10d::ReduceOp::SUM);
WorkPtr AllReduceAsync(at::Tensor tensor, const ProcessGroupPtr& group, Reduction reduction = c10d::ReduceOp::SUM);

/// `tensor` becomes that of `root`, on all ranks.
void Broadcast(at::Tensor tensor, const ProcessGroupPtr& group, int root = 0);
WorkPtr BroadcastAsync(at::Tensor tensor, const ProcessGroupPtr& group, int root = 0);

/// `tensor` becomes the reduction on `root`. On the other ranks nothing is promised about its values afterwards.
void Reduce(at::Tensor tensor, const ProcessGroupPtr& group, int root = 0, Reduction reduction = c10d::ReduceOp::SUM);
WorkPtr ReduceAsync(at::Tensor tensor, const ProcessGroupPtr& group, int root = 0,
                    Reduction reduction = c10d::ReduceOp::SUM);

/// Every rank's tensor, by rank.
std::vector<at::Tensor> AllGather(const at::Tensor& tensor, const ProcessGroupPtr& group);
/// The same into given tensors, one per rank.
WorkPtr AllGatherAsync(std::vector<at::Tensor> outputs, const at::Tensor& tensor, const ProcessGroupPtr& group);

/// The same into one tensor of world-size times the elements: rank r's begin at element r · input.numel().
void AllGatherInto(at::Tensor output, const at::Tensor& input, const ProcessGroupPtr& group);
WorkPtr AllGatherIntoAsync(at::Tensor output, const at::Tensor& input, const ProcessGroupPtr& group);

/// `input` is cut into as many equal parts as there are ranks, each of `output`'s number of elements; `output` becomes
/// the reduction of this rank's parts over all ranks.
void ReduceScatter(at::Tensor output, const at::Tensor& input, const ProcessGroupPtr& group,
                   Reduction reduction = c10d::ReduceOp::SUM);
WorkPtr ReduceScatterAsync(at::Tensor output, const at::Tensor& input, const ProcessGroupPtr& group,
                           Reduction reduction = c10d::ReduceOp::SUM);

/// `output` becomes `inputs[rank]` of `root`; on the other ranks `inputs` is empty.
void Scatter(at::Tensor output, const std::vector<at::Tensor>& inputs, const ProcessGroupPtr& group, int root = 0);
WorkPtr ScatterAsync(at::Tensor output, std::vector<at::Tensor> inputs, const ProcessGroupPtr& group, int root = 0);

/// On `root`, every rank's tensor, by rank; nothing on the others.
std::vector<at::Tensor> Gather(const at::Tensor& tensor, const ProcessGroupPtr& group, int root = 0);
/// The same into given tensors, one per rank; on the other ranks `outputs` is empty.
WorkPtr GatherAsync(std::vector<at::Tensor> outputs, const at::Tensor& tensor, const ProcessGroupPtr& group,
                    int root = 0);

/// Every rank sends a part of `input` to every rank. The splits are rows (entries of the first dimension) for and from
/// each rank; without them the parts are equal. What rank a sends to rank b must be what b expects from a.
void AllToAll(at::Tensor output, const at::Tensor& input, const ProcessGroupPtr& group,
              std::vector<int64_t> output_splits = {}, std::vector<int64_t> input_splits = {});
WorkPtr AllToAllAsync(at::Tensor output, const at::Tensor& input, const ProcessGroupPtr& group,
                      std::vector<int64_t> output_splits = {}, std::vector<int64_t> input_splits = {});

/// Between two ranks, matched by `tag` (on NCCL by order alone). A null group has nobody to send to: throws.
void Send(const at::Tensor& tensor, int to, const ProcessGroupPtr& group, int tag = 0);
WorkPtr SendAsync(const at::Tensor& tensor, int to, const ProcessGroupPtr& group, int tag = 0);
/// Returns the rank that it came from. `kAnyRank`: from whoever sends first (not on NCCL).
constexpr int kAnyRank = -1;
int Receive(at::Tensor tensor, int from, const ProcessGroupPtr& group, int tag = 0);
WorkPtr ReceiveAsync(at::Tensor tensor, int from, const ProcessGroupPtr& group, int tag = 0);

/// Returns when every rank has come here. Ranks wait on the host; what is under way on a CUDA stream is not waited for.
void Barrier(const ProcessGroupPtr& group);
WorkPtr BarrierAsync(const ProcessGroupPtr& group);

/// The same with a time limit of its own; throws and names the ranks that did not come. Over the backend of the CPU,
/// also beside NCCL. After it has thrown, the group may be of no use any more.
void MonitoredBarrier(const ProcessGroupPtr& group, std::chrono::milliseconds timeout);

/// Whether any rank says yes.
bool AnyRank(bool mine, const ProcessGroupPtr& group);

}  // namespace lockstep
