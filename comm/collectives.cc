#include "lockstep/comm/collectives.h"

#include <ATen/Functions.h>
#include <ATen/MemoryOverlap.h>
#include <ATen/core/ivalue.h>
#include <c10/core/GradMode.h>
#include <c10/util/Exception.h>

#include <mutex>
#include <utility>

#include "lockstep/comm/definedness.h"

namespace lockstep {
namespace {

using Tensors = std::vector<at::Tensor>;

/// What a world of one returns: done before it began.
class DoneWork : public c10d::Work {
 public:
  explicit DoneWork(Tensors outputs) : outputs_(std::move(outputs)) { finish(); }
  Tensors result() override { return outputs_; }
  void synchronize() override {}
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override {
    auto future = c10::make_intrusive<c10::ivalue::Future>(c10::ListType::create(c10::TensorType::get()));
    future->markCompleted(outputs_);
    return future;
  }

 private:
  const Tensors outputs_;
};

WorkPtr Done(Tensors outputs) { return c10::make_intrusive<DoneWork>(std::move(outputs)); }

/// Done, and a copy made.
WorkPtr Copied(at::Tensor to, const at::Tensor& from) {
  const at::NoGradGuard no_grad;
  to.detach().copy_(from.reshape(to.sizes()));
  return Done({to});
}

/// Not through the process group, whose way through LibTorch's dispatcher costs more than a small collective itself.
c10d::Backend& BackendOf(const ProcessGroupPtr& group, const at::Tensor& tensor) {
  return *group->getBackend(tensor.device().type());
}

/// A work that used other tensors in the place of the caller's: when it is done, its results go back to those.
class CopyBackWork : public c10d::Work {
 public:
  CopyBackWork(WorkPtr work, std::vector<std::pair<at::Tensor, at::Tensor>> pairs, Tensors outputs)
      : work_(std::move(work)), pairs_(std::move(pairs)), outputs_(std::move(outputs)) {}
  bool isCompleted() override {
    if (!work_->isCompleted()) return false;
    if (work_->isSuccess()) CopyBack();
    return true;
  }
  bool isSuccess() const override { return work_->isSuccess(); }
  std::exception_ptr exception() const override { return work_->exception(); }
  int sourceRank() const override { return work_->sourceRank(); }
  uint64_t getSequencenumber() const override { return work_->getSequencenumber(); }
  Tensors result() override { return outputs_; }
  void synchronize() override { wait(kNoTimeout); }
  bool wait(std::chrono::milliseconds timeout) override {
    const bool done = work_->wait(timeout);
    CopyBack();
    return done;
  }
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override {
    auto self = c10::intrusive_ptr<CopyBackWork>::reclaim_copy(this);
    return work_->getFuture()->then(
        [self](c10::ivalue::Future&) {
          self->CopyBack();
          return c10::IValue(self->outputs_);
        },
        c10::ListType::create(c10::TensorType::get()));
  }

 private:
  void CopyBack() {
    const at::NoGradGuard no_grad;
    const std::lock_guard<std::mutex> lock(mutex_);
    for (auto& [output, used] : pairs_) output.detach().copy_(used);
    pairs_.clear();
  }

  const WorkPtr work_;
  std::vector<std::pair<at::Tensor, at::Tensor>> pairs_;  // the caller's, and what was used instead; once, under mutex_
  const Tensors outputs_;
};

/// Gives every backend contiguous tensors: not all take others, and those that do take their memory's order for the
/// elements'. What is only moved, and not reduced, goes as pairs of reals when it is complex.
class Stand {
 public:
  explicit Stand(bool reduces) : reduces_(reduces) {}

  /// In the place of `tensor`; `result` says whether it will be written to.
  at::Tensor In(const at::Tensor& tensor, bool result) {
    TORCH_CHECK(tensor.defined(), "collective: an undefined tensor");
    TORCH_CHECK(!result || at::has_internal_overlap(tensor) != at::MemOverlap::Yes,
                "collective: a result whose elements share memory; clone it first");
    // A conjugated or negated view's memory holds other values than the tensor.
    const at::Tensor contiguous = tensor.detach().resolve_conj().resolve_neg().contiguous();
    if (result && contiguous.data_ptr() != tensor.data_ptr()) pairs_.emplace_back(tensor, contiguous);
    if (result) outputs_.push_back(tensor);
    return contiguous.is_complex() && !reduces_ ? at::view_as_real(contiguous) : contiguous;
  }
  WorkPtr Finish(WorkPtr work) {
    if (pairs_.empty()) return work;
    return c10::make_intrusive<CopyBackWork>(std::move(work), std::move(pairs_), std::move(outputs_));
  }

 private:
  const bool reduces_;
  std::vector<std::pair<at::Tensor, at::Tensor>> pairs_;
  Tensors outputs_;
};

/// The sum of bools is whether any is true; Gloo would add them as bytes.
Reduction OfDtype(Reduction reduction, const at::Tensor& tensor) {
  return tensor.scalar_type() == at::kBool && reduction == c10d::ReduceOp::SUM ? c10d::ReduceOp::MAX : reduction;
}

void CheckRoot(int root, const ProcessGroupPtr& group, const char* operation) {
  TORCH_CHECK(root >= 0 && root < GetWorldSize(group), operation, ": rank ", root, " in a group of ",
              GetWorldSize(group));
}

void CheckParts(const at::Tensor& whole, const at::Tensor& part, const ProcessGroupPtr& group, const char* operation) {
  TORCH_CHECK(whole.scalar_type() == part.scalar_type() && whole.numel() == part.numel() * GetWorldSize(group),
              operation, ": a ", whole.scalar_type(), " tensor of ", whole.sizes(), " is not ", GetWorldSize(group),
              " times a ", part.scalar_type(), " tensor of ", part.sizes());
}

void CheckAll(const Tensors& tensors, const at::Tensor& like, const ProcessGroupPtr& group, const char* operation) {
  TORCH_CHECK(tensors.size() == static_cast<size_t>(GetWorldSize(group)), operation, ": ", tensors.size(),
              " tensors for ", GetWorldSize(group), " ranks");
  for (const at::Tensor& tensor : tensors) {
    TORCH_CHECK(tensor.scalar_type() == like.scalar_type() && tensor.sizes() == like.sizes(), operation, ": a ",
                tensor.scalar_type(), " tensor of ", tensor.sizes(), " beside a ", like.scalar_type(), " tensor of ",
                like.sizes());
  }
}

Tensors EmptyLike(const at::Tensor& tensor, const ProcessGroupPtr& group) {
  Tensors tensors;
  for (int rank = 0; rank < GetWorldSize(group); ++rank) {
    tensors.push_back(at::empty(tensor.sizes(), tensor.options().requires_grad(false)));
  }
  return tensors;
}

}  // namespace

int GetRank(const ProcessGroupPtr& group) { return group ? group->getRank() : 0; }

int GetWorldSize(const ProcessGroupPtr& group) { return group ? group->getSize() : 1; }

WorkPtr AllReduceAsync(at::Tensor tensor, const ProcessGroupPtr& group, Reduction reduction) {
  CheckDefined("all-reduce", reduction, tensor, group);
  if (!group) return Done({tensor});
  Stand stand(/*reduces=*/true);
  Tensors tensors = {stand.In(tensor, true)};
  c10d::AllreduceOptions options;
  options.reduceOp = OfDtype(reduction, tensor);
  return stand.Finish(BackendOf(group, tensor).allreduce(tensors, options));
}

WorkPtr BroadcastAsync(at::Tensor tensor, const ProcessGroupPtr& group, int root) {
  CheckRoot(root, group, "broadcast");
  CheckMovable("broadcast", tensor, group);
  if (!group) return Done({tensor});
  Stand stand(/*reduces=*/false);
  Tensors tensors = {stand.In(tensor, true)};
  c10d::BroadcastOptions options;
  options.rootRank = root;
  return stand.Finish(BackendOf(group, tensor).broadcast(tensors, options));
}

WorkPtr ReduceAsync(at::Tensor tensor, const ProcessGroupPtr& group, int root, Reduction reduction) {
  CheckRoot(root, group, "reduce");
  CheckDefined("reduce", reduction, tensor, group);
  if (!group) return Done({tensor});
  Stand stand(/*reduces=*/true);
  Tensors tensors = {stand.In(tensor, GetRank(group) == root)};
  c10d::ReduceOptions options;
  options.reduceOp = OfDtype(reduction, tensor);
  options.rootRank = root;
  return stand.Finish(BackendOf(group, tensor).reduce(tensors, options));
}

WorkPtr AllGatherAsync(Tensors outputs, const at::Tensor& tensor, const ProcessGroupPtr& group) {
  CheckMovable("all-gather", tensor, group);
  CheckAll(outputs, tensor, group, "all-gather");
  if (!group) return Copied(outputs[0], tensor);
  Stand stand(/*reduces=*/false);
  std::vector<Tensors> lists(1);
  for (const at::Tensor& output : outputs) lists[0].push_back(stand.In(output, true));
  Tensors inputs = {stand.In(tensor, false)};
  return stand.Finish(BackendOf(group, tensor).allgather(lists, inputs));
}

WorkPtr AllGatherIntoAsync(at::Tensor output, const at::Tensor& input, const ProcessGroupPtr& group) {
  CheckMovable("all-gather", input, group);
  CheckParts(output, input, group, "all-gather");
  if (!group) return Copied(output, input);
  Stand stand(/*reduces=*/false);
  // Flat: Gloo wants the shapes to match in ways that the memory doesn't need.
  at::Tensor to = stand.In(output, true).view({-1}), from = stand.In(input, false).view({-1});
  return stand.Finish(BackendOf(group, input)._allgather_base(to, from));
}

WorkPtr ReduceScatterAsync(at::Tensor output, const at::Tensor& input, const ProcessGroupPtr& group,
                           Reduction reduction) {
  CheckDefined("reduce-scatter", reduction, input, group);
  CheckParts(input, output, group, "reduce-scatter");
  if (!group) return Copied(output, input);
  Stand stand(/*reduces=*/true);
  at::Tensor to = stand.In(output, true).view({-1}), from = stand.In(input, false).view({-1});
  c10d::ReduceScatterOptions options;
  options.reduceOp = OfDtype(reduction, input);
  return stand.Finish(BackendOf(group, input)._reduce_scatter_base(to, from, options));
}

WorkPtr ScatterAsync(at::Tensor output, Tensors inputs, const ProcessGroupPtr& group, int root) {
  CheckRoot(root, group, "scatter");
  CheckMovable("scatter", output, group);
  if (GetRank(group) == root) {
    CheckAll(inputs, output, group, "scatter");
  } else {
    TORCH_CHECK(inputs.empty(), "scatter: only the root, rank ", root, ", gives inputs");
  }
  if (!group) return Copied(output, inputs[0]);
  Stand stand(/*reduces=*/false);
  Tensors outputs = {stand.In(output, true)};
  std::vector<Tensors> lists;
  if (GetRank(group) == root) {
    lists.emplace_back();
    for (const at::Tensor& input : inputs) lists[0].push_back(stand.In(input, false));
  }
  c10d::ScatterOptions options;
  options.rootRank = root;
  return stand.Finish(BackendOf(group, output).scatter(outputs, lists, options));
}

WorkPtr GatherAsync(Tensors outputs, const at::Tensor& tensor, const ProcessGroupPtr& group, int root) {
  CheckRoot(root, group, "gather");
  CheckMovable("gather", tensor, group);
  if (GetRank(group) == root) {
    CheckAll(outputs, tensor, group, "gather");
  } else {
    TORCH_CHECK(outputs.empty(), "gather: only the root, rank ", root, ", gives outputs");
  }
  if (!group) return Copied(outputs[0], tensor);
  Stand stand(/*reduces=*/false);
  std::vector<Tensors> lists;
  if (GetRank(group) == root) {
    lists.emplace_back();
    for (const at::Tensor& output : outputs) lists[0].push_back(stand.In(output, true));
  }
  Tensors inputs = {stand.In(tensor, false)};
  c10d::GatherOptions options;
  options.rootRank = root;
  return stand.Finish(BackendOf(group, tensor).gather(lists, inputs, options));
}

WorkPtr AllToAllAsync(at::Tensor output, const at::Tensor& input, const ProcessGroupPtr& group,
                      std::vector<int64_t> output_splits, std::vector<int64_t> input_splits) {
  CheckMovable("all-to-all", input, group);
  for (const auto& [tensor, splits] : {std::pair(output, output_splits), std::pair(input, input_splits)}) {
    TORCH_CHECK(tensor.dim() > 0, "all-to-all: a tensor without dimensions has no rows");
    TORCH_CHECK(splits.empty() || splits.size() == static_cast<size_t>(GetWorldSize(group)),
                "all-to-all: ", splits.size(), " splits for ", GetWorldSize(group), " ranks");
    int64_t rows = 0;
    for (int64_t split : splits) {
      TORCH_CHECK(split >= 0, "all-to-all: a negative split: ", split);
      rows += split;
    }
    TORCH_CHECK(splits.empty() ? tensor.size(0) % GetWorldSize(group) == 0 : rows == tensor.size(0),
                "all-to-all: a tensor of ", tensor.size(0), " rows can't be cut into ",
                splits.empty() ? "equal parts for " : "the given splits of ",
                splits.empty() ? GetWorldSize(group) : rows, splits.empty() ? " ranks" : " rows");
  }
  TORCH_CHECK(output.scalar_type() == input.scalar_type(), "all-to-all: from ", input.scalar_type(), " to ",
              output.scalar_type());
  if (!group) return Copied(output, input);
  Stand stand(/*reduces=*/false);
  at::Tensor to = stand.In(output, true), from = stand.In(input, false);
  return stand.Finish(BackendOf(group, input).alltoall_base(to, from, output_splits, input_splits));
}

WorkPtr SendAsync(const at::Tensor& tensor, int to, const ProcessGroupPtr& group, int tag) {
  TORCH_CHECK(group, "send: a world of one has nobody to send to");
  CheckRoot(to, group, "send");
  Stand stand(/*reduces=*/false);
  Tensors tensors = {stand.In(tensor, false)};
  return BackendOf(group, tensor).send(tensors, to, tag);
}

WorkPtr ReceiveAsync(at::Tensor tensor, int from, const ProcessGroupPtr& group, int tag) {
  TORCH_CHECK(group, "receive: a world of one has nobody to receive from");
  if (from != kAnyRank) CheckRoot(from, group, "receive");
  Stand stand(/*reduces=*/false);
  Tensors tensors = {stand.In(tensor, true)};
  c10d::Backend& backend = BackendOf(group, tensor);
  return stand.Finish(from == kAnyRank ? backend.recvAnysource(tensors, tag) : backend.recv(tensors, from, tag));
}

WorkPtr BarrierAsync(const ProcessGroupPtr& group) {
  if (!group) return Done({});
  // On the CPU, where every group has a backend: a barrier on CUDA would have to guess the device.
  return group->getBackend(at::kCPU)->barrier();
}

void AllReduce(at::Tensor tensor, const ProcessGroupPtr& group, Reduction reduction) {
  AllReduceAsync(std::move(tensor), group, reduction)->wait();
}

void Broadcast(at::Tensor tensor, const ProcessGroupPtr& group, int root) {
  BroadcastAsync(std::move(tensor), group, root)->wait();
}

void Reduce(at::Tensor tensor, const ProcessGroupPtr& group, int root, Reduction reduction) {
  ReduceAsync(std::move(tensor), group, root, reduction)->wait();
}

Tensors AllGather(const at::Tensor& tensor, const ProcessGroupPtr& group) {
  Tensors outputs = EmptyLike(tensor, group);
  AllGatherAsync(outputs, tensor, group)->wait();
  return outputs;
}

void AllGatherInto(at::Tensor output, const at::Tensor& input, const ProcessGroupPtr& group) {
  AllGatherIntoAsync(std::move(output), input, group)->wait();
}

void ReduceScatter(at::Tensor output, const at::Tensor& input, const ProcessGroupPtr& group, Reduction reduction) {
  ReduceScatterAsync(std::move(output), input, group, reduction)->wait();
}

void Scatter(at::Tensor output, const Tensors& inputs, const ProcessGroupPtr& group, int root) {
  ScatterAsync(std::move(output), inputs, group, root)->wait();
}

Tensors Gather(const at::Tensor& tensor, const ProcessGroupPtr& group, int root) {
  Tensors outputs;
  if (GetRank(group) == root) outputs = EmptyLike(tensor, group);
  GatherAsync(outputs, tensor, group, root)->wait();
  return outputs;
}

void AllToAll(at::Tensor output, const at::Tensor& input, const ProcessGroupPtr& group,
              std::vector<int64_t> output_splits, std::vector<int64_t> input_splits) {
  AllToAllAsync(std::move(output), input, group, std::move(output_splits), std::move(input_splits))->wait();
}

void Send(const at::Tensor& tensor, int to, const ProcessGroupPtr& group, int tag) {
  SendAsync(tensor, to, group, tag)->wait();
}

int Receive(at::Tensor tensor, int from, const ProcessGroupPtr& group, int tag) {
  const WorkPtr work = ReceiveAsync(std::move(tensor), from, group, tag);
  work->wait();
  return from == kAnyRank ? work->sourceRank() : from;
}

void Barrier(const ProcessGroupPtr& group) { BarrierAsync(group)->wait(); }

void MonitoredBarrier(const ProcessGroupPtr& group, std::chrono::milliseconds timeout) {
  if (!group) return;
  c10d::BarrierOptions options;
  options.timeout = timeout;
  group->getBackend(at::kCPU)->monitoredBarrier(options, /*waitAllRanks=*/true);
}

bool AnyRank(bool mine, const ProcessGroupPtr& group) {
  if (!group) return mine;
  at::Tensor flag = at::scalar_tensor(mine ? 1 : 0, at::kInt);
  AllReduce(flag, group, c10d::ReduceOp::MAX);
  return flag.item<int>() != 0;
}

}  // namespace lockstep
