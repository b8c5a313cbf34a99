#include "lockstep/comm/hierarchical/hierarchical_backend.h"

#include <absl/status/status.h>
#include <absl/strings/str_cat.h>
#include <ATen/Functions.h>
#include <c10/core/GradMode.h>
#include <c10/util/Exception.h>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>

#include <algorithm>
#include <atomic>
#include <exception>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/base/error_text.h"
#include "lockstep/base/status_macros.h"
#include "lockstep/comm/definedness.h"
#include "lockstep/comm/hierarchical/internal/two_levels.h"
#include "lockstep/comm/liveness.h"
#include "lockstep/comm/meeting.h"
#include "lockstep/comm/shm/internal/work_queue.h"
#include "lockstep/comm/shm/shm_backend.h"

namespace lockstep {
namespace {

using c10d::OpType;
using hierarchical::TwoLevels;
using BackendPtr = c10::intrusive_ptr<c10d::Backend>;
using Deadline = TwoLevels::Clock::time_point;
using Tensors = std::vector<at::Tensor>;
using WorkPtr = c10::intrusive_ptr<c10d::Work>;

constexpr char kName[] = "hierarchical";

/// Above it a collective is worth waking a thread for.
constexpr size_t kLargeBytes = 1 << 20;

/// A tensor as the levels want it: contiguous, complex numbers as pairs; CopyBack brings the result home.
class Plain {
 public:
  explicit Plain(const at::Tensor& tensor) : tensor_(tensor.detach()), contiguous_(tensor_.contiguous()) {}
  at::Tensor data() const { return contiguous_.is_complex() ? at::view_as_real(contiguous_) : contiguous_; }
  void CopyBack() {
    const at::NoGradGuard no_grad;
    if (contiguous_.data_ptr() != tensor_.data_ptr()) tensor_.copy_(contiguous_);
  }

 private:
  at::Tensor tensor_, contiguous_;
};

class HierarchicalBackend : public c10d::Backend {
 public:
  struct Links {
    TwoLevels::Links levels;
    BackendPtr flat;  ///< Of all ranks.
  };
  HierarchicalBackend(const Hosts& hosts, int rank, Links links, const HierarchicalBackendOptions& options)
      : Backend(rank, static_cast<int>(hosts.of.size())),
        timeout_(options.timeout),
        monitor_(options.monitor),
        local_(links.levels.local),
        between_(links.levels.between),
        flat_(std::move(links.flat)),
        levels_(hosts, rank, std::move(links.levels), options.monitor),
        queue_(kName) {}

  const std::string getBackendName() const override { return kName; }
  void setTimeout(std::chrono::milliseconds timeout) override {
    timeout_ = timeout;
    flat_->setTimeout(timeout);
  }
  void setSequenceNumberForGroup() override {}
  uint64_t getSequenceNumberForGroup() override { return queue_.last_sequence(); }
  void abort() override {
    if (local_) local_->abort();
    if (between_) between_->abort();
    flat_->abort();
    monitor_->Abort();  // for those who wait for the network; Gloo has no abort of its own
  }
  bool supportsTensorAlloc(c10::DeviceIndex) override { return local_ != nullptr; }
  at::Tensor allocateTensor(long size, at::TensorOptions options) override {
    TORCH_CHECK(local_, "backend hierarchical: allocateTensor: this rank is alone on its host");
    return local_->allocateTensor(size, options);
  }

  WorkPtr allreduce(Tensors& tensors, const c10d::AllreduceOptions& options) override {
    const at::Tensor& tensor = Single(tensors, "allreduce");
    CheckReduction(OpType::ALLREDUCE, options.reduceOp, tensor);
    return AllReduce(OpType::ALLREDUCE, tensors, options.reduceOp, options.timeout);
  }

  WorkPtr allreduce_coalesced(Tensors& tensors, const c10d::AllreduceCoalescedOptions& options) override {
    for (const at::Tensor& tensor : tensors) {
      CheckTensor(tensor, "allreduce_coalesced");
      CheckReduction(OpType::ALLREDUCE_COALESCED, options.reduceOp, tensor);
    }
    return AllReduce(OpType::ALLREDUCE_COALESCED, tensors, options.reduceOp, options.timeout);
  }

  WorkPtr reduce(Tensors& tensors, const c10d::ReduceOptions& options) override {
    const at::Tensor tensor = Single(tensors, "reduce");
    const int root = Root(options.rootRank, "reduce");
    CheckReduction(OpType::REDUCE, options.reduceOp, tensor);
    const c10d::ReduceOp reduction = OfDtype(options.reduceOp, tensor);
    return Submit(OpType::REDUCE, tensors, options.timeout, [this, tensor, root, reduction](Deadline deadline) {
      Plain plain(tensor);
      levels_.Reduce(plain.data(), reduction, root, deadline);
      plain.CopyBack();
    });
  }

  WorkPtr broadcast(Tensors& tensors, const c10d::BroadcastOptions& options) override {
    const at::Tensor tensor = Single(tensors, "broadcast");
    const int root = Root(options.rootRank, "broadcast");
    return Submit(OpType::BROADCAST, tensors, options.timeout, [this, tensor, root](Deadline deadline) {
      Plain plain(tensor);
      levels_.Broadcast(plain.data(), root, deadline);
      if (rank_ != root) plain.CopyBack();
    });
  }

  WorkPtr barrier(const c10d::BarrierOptions& options) override {
    return Submit(OpType::BARRIER, {}, options.timeout, [this](Deadline deadline) { levels_.Barrier(deadline); });
  }
  void monitoredBarrier(const c10d::BarrierOptions& options, bool all_ranks) override {
    flat_->monitoredBarrier(options, all_ranks);
  }

  WorkPtr allgather(std::vector<Tensors>& outputs, Tensors& inputs, const c10d::AllgatherOptions& options) override {
    const at::Tensor& input = Single(inputs, "allgather");
    TORCH_CHECK(outputs.size() == 1, "backend hierarchical: allgather: one list of outputs, not ", outputs.size());
    CheckList(outputs[0], input, "allgather", "outputs");
    if (!levels_.even()) {
      return Flat(OpType::ALLGATHER, outputs[0], options.timeout,
                  [this, outputs, inputs, options]() mutable { return flat_->allgather(outputs, inputs, options); });
    }
    return AllGather(OpType::ALLGATHER, outputs[0], input, options.timeout);
  }

  WorkPtr _allgather_base(at::Tensor& output, at::Tensor& input, const c10d::AllgatherOptions& options) override {
    CheckBlocks(output, input, "_allgather_base", "output", "input");
    if (!levels_.even()) {
      return Flat(OpType::_ALLGATHER_BASE, {output}, options.timeout,
                  [this, output, input, options]() mutable { return flat_->_allgather_base(output, input, options); });
    }
    return AllGather(OpType::_ALLGATHER_BASE, {output}, input, options.timeout);
  }

  WorkPtr allgather_coalesced(std::vector<Tensors>& outputs, Tensors& inputs,
                              const c10d::AllgatherOptions& options) override {
    return Flat(
        OpType::ALLGATHER_COALESCED, Flattened(outputs), options.timeout,
        [this, outputs, inputs, options]() mutable { return flat_->allgather_coalesced(outputs, inputs, options); });
  }
  WorkPtr allgather_into_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                          const c10d::AllgatherOptions& options) override {
    return Flat(OpType::COALESCED, outputs, options.timeout, [this, outputs, inputs, options]() mutable {
      return flat_->allgather_into_tensor_coalesced(outputs, inputs, options);
    });
  }

  WorkPtr reduce_scatter(Tensors& outputs, std::vector<Tensors>& inputs,
                         const c10d::ReduceScatterOptions& options) override {
    const at::Tensor& output = Single(outputs, "reduce_scatter");
    TORCH_CHECK(inputs.size() == 1, "backend hierarchical: reduce_scatter: one list of inputs, not ", inputs.size());
    CheckList(inputs[0], output, "reduce_scatter", "inputs");
    CheckReduction(OpType::REDUCE_SCATTER, options.reduceOp, output);
    if (!levels_.even()) {
      return Flat(OpType::REDUCE_SCATTER, outputs, options.timeout, [this, outputs, inputs, options]() mutable {
        return flat_->reduce_scatter(outputs, inputs, options);
      });
    }
    return ReduceScatter(OpType::REDUCE_SCATTER, output, inputs[0], options);
  }

  WorkPtr _reduce_scatter_base(at::Tensor& output, at::Tensor& input,
                               const c10d::ReduceScatterOptions& options) override {
    CheckBlocks(input, output, "_reduce_scatter_base", "input", "output");
    CheckReduction(OpType::_REDUCE_SCATTER_BASE, options.reduceOp, output);
    if (!levels_.even()) {
      return Flat(OpType::_REDUCE_SCATTER_BASE, {output}, options.timeout, [this, output, input, options]() mutable {
        return flat_->_reduce_scatter_base(output, input, options);
      });
    }
    return ReduceScatter(OpType::_REDUCE_SCATTER_BASE, output, {input}, options);
  }
  WorkPtr reduce_scatter_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                          const c10d::ReduceScatterOptions& options) override {
    return Flat(OpType::COALESCED, outputs, options.timeout, [this, outputs, inputs, options]() mutable {
      return flat_->reduce_scatter_tensor_coalesced(outputs, inputs, options);
    });
  }

  // What two levels don't help.

  WorkPtr allreduce_sparse(Tensors& tensors, const c10d::AllreduceOptions& options) override {
    return Flat(OpType::_ALLREDUCE_SPARSE, tensors, options.timeout,
                [this, tensors, options]() mutable { return flat_->allreduce_sparse(tensors, options); });
  }
  WorkPtr gather(std::vector<Tensors>& outputs, Tensors& inputs, const c10d::GatherOptions& options) override {
    return Flat(OpType::GATHER, Flattened(outputs), options.timeout,
                [this, outputs, inputs, options]() mutable { return flat_->gather(outputs, inputs, options); });
  }
  WorkPtr scatter(Tensors& outputs, std::vector<Tensors>& inputs, const c10d::ScatterOptions& options) override {
    return Flat(OpType::SCATTER, outputs, options.timeout,
                [this, outputs, inputs, options]() mutable { return flat_->scatter(outputs, inputs, options); });
  }
  WorkPtr alltoall(Tensors& outputs, Tensors& inputs, const c10d::AllToAllOptions& options) override {
    return Flat(OpType::ALLTOALL, outputs, options.timeout,
                [this, outputs, inputs, options]() mutable { return flat_->alltoall(outputs, inputs, options); });
  }
  WorkPtr alltoall_base(at::Tensor& output, at::Tensor& input, std::vector<int64_t>& output_splits,
                        std::vector<int64_t>& input_splits, const c10d::AllToAllOptions& options) override {
    return Flat(OpType::ALLTOALL_BASE, {output}, options.timeout,
                [this, output, input, output_splits, input_splits, options]() mutable {
                  return flat_->alltoall_base(output, input, output_splits, input_splits, options);
                });
  }
  WorkPtr send(Tensors& tensors, int to, int tag) override { return flat_->send(tensors, to, tag); }
  WorkPtr recv(Tensors& tensors, int from, int tag) override { return flat_->recv(tensors, from, tag); }
  WorkPtr recvAnysource(Tensors& tensors, int tag) override { return flat_->recvAnysource(tensors, tag); }

 private:
  using Body = std::function<void(Deadline)>;

  class CollectiveWork : public shm::QueuedWork {
   public:
    CollectiveWork(HierarchicalBackend& backend, OpType operation, Tensors outputs, std::chrono::milliseconds timeout,
                   Body body)
        : QueuedWork(backend.queue_, backend.rank_, operation, std::move(outputs)),
          backend_(backend),
          timeout_(timeout),
          body_(std::move(body)) {}

   private:
    void Run(bool) override {
      const Body body = std::exchange(body_, nullptr);
      backend_.RunBody(body, timeout_);
    }

    HierarchicalBackend& backend_;
    const std::chrono::milliseconds timeout_;
    Body body_;
  };

  WorkPtr Submit(OpType operation, const Tensors& outputs, std::chrono::milliseconds timeout, Body body) {
    if (timeout == c10d::kUnsetTimeout) timeout = timeout_.load();
    size_t bytes = 0;
    for (const at::Tensor& output : outputs) bytes += output.is_sparse() ? 0 : output.nbytes();
    return queue_.Add(bytes >= kLargeBytes, [&](uint64_t) {
      return c10::make_intrusive<CollectiveWork>(*this, operation, outputs, timeout, std::move(body));
    });
  }

  void RunBody(const Body& body, std::chrono::milliseconds timeout) {
    TORCH_CHECK_WITH(DistBackendError, failure_.empty(), "the group has failed before: ", failure_);
    try {
      body(TwoLevels::Clock::now() + timeout);
    } catch (const std::exception& e) {
      failure_ = FirstLine(e.what());
      levels_.GiveUp(failure_);
      throw;
    }
  }

  /// Over the backend of all ranks, in its turn.
  template <typename Start>
  WorkPtr Flat(OpType operation, const Tensors& outputs, std::chrono::milliseconds timeout, Start start) {
    return Submit(operation, outputs, timeout, [this, start](Deadline) mutable {
      const WorkPtr work = start();
      monitor_->Wait(*work);
    });
  }

  WorkPtr AllReduce(OpType operation, const Tensors& tensors, const c10d::ReduceOp& reduction,
                    std::chrono::milliseconds timeout) {
    return Submit(operation, tensors, timeout, [this, tensors, reduction](Deadline deadline) {
      for (const at::Tensor& tensor : tensors) {
        Plain plain(tensor);
        levels_.AllReduce(plain.data(), OfDtype(reduction, tensor), deadline);
        plain.CopyBack();
      }
    });
  }

  /// Into a tensor per rank, or one for all.
  WorkPtr AllGather(OpType operation, const Tensors& outputs, const at::Tensor& input,
                    std::chrono::milliseconds timeout) {
    return Submit(operation, outputs, timeout, [this, outputs, input](Deadline deadline) {
      std::vector<Plain> plains(outputs.begin(), outputs.end());
      Tensors to;
      for (const Plain& plain : plains) to.push_back(plain.data());
      levels_.AllGather(ByRank(to), Plain(input).data(), deadline);
      for (Plain& plain : plains) plain.CopyBack();
    });
  }

  /// From a tensor per rank, or one for all.
  WorkPtr ReduceScatter(OpType operation, const at::Tensor& output, const Tensors& inputs,
                        const c10d::ReduceScatterOptions& options) {
    const c10d::ReduceOp reduction = OfDtype(options.reduceOp, output);
    return Submit(operation, {output}, options.timeout, [this, output, inputs, reduction](Deadline deadline) {
      Tensors from;
      for (const at::Tensor& input : inputs) from.push_back(Plain(input).data());
      Plain plain(output);
      levels_.ReduceScatter(plain.data(), ByRank(from), reduction, deadline);
      plain.CopyBack();
    });
  }

  static Tensors Flattened(const std::vector<Tensors>& lists) {
    Tensors all;
    for (const Tensors& list : lists) all.insert(all.end(), list.begin(), list.end());
    return all;
  }

  /// The parts of one tensor, if it is one.
  Tensors ByRank(const Tensors& tensors) const {
    if (tensors.size() == static_cast<size_t>(size_)) return tensors;
    const at::Tensor flat = tensors[0].view({size_, tensors[0].numel() / size_});
    Tensors rows;
    for (int r = 0; r < size_; ++r) rows.push_back(flat[r]);
    return rows;
  }

  /// The sum of bools is whether any is true; Gloo would add them as bytes.
  static c10d::ReduceOp OfDtype(const c10d::ReduceOp& reduction, const at::Tensor& tensor) {
    const bool any = tensor.scalar_type() == at::kBool && reduction.op_ == c10d::ReduceOp::SUM;
    return any ? c10d::ReduceOp(c10d::ReduceOp::MAX) : reduction;
  }

  int Root(int64_t rank, const char* name) const {
    TORCH_CHECK(rank >= 0 && rank < size_, "backend hierarchical: ", name, ": rank ", rank, " in a group of ", size_);
    return static_cast<int>(rank);
  }

  static void CheckTensor(const at::Tensor& tensor, const char* name) {
    TORCH_CHECK(tensor.defined(), "backend hierarchical: ", name, ": an undefined tensor");
    TORCH_CHECK(tensor.layout() == at::kStrided, "backend hierarchical: ", name, ": a ", tensor.layout(),
                " tensor; only dense ones are moved");
    TORCH_CHECK(tensor.device().is_cpu(), "backend hierarchical: ", name, ": a tensor on ", tensor.device(),
                "; only CPU tensors are moved");
  }

  static const at::Tensor& Single(const Tensors& tensors, const char* name) {
    TORCH_CHECK(tensors.size() == 1, "backend hierarchical: ", name, ": one tensor, not ", tensors.size());
    CheckTensor(tensors[0], name);
    return tensors[0];
  }

  void CheckList(const Tensors& list, const at::Tensor& like, const char* name, const char* what) const {
    TORCH_CHECK(list.size() == static_cast<size_t>(size_), "backend hierarchical: ", name, ": ", list.size(), " ", what,
                " for ", size_, " ranks");
    for (const at::Tensor& tensor : list) {
      CheckTensor(tensor, name);
      TORCH_CHECK(tensor.scalar_type() == like.scalar_type() && tensor.numel() == like.numel(),
                  "backend hierarchical: ", name, ": a ", tensor.scalar_type(), " tensor of ", tensor.sizes(),
                  " beside a ", like.scalar_type(), " tensor of ", like.sizes());
    }
  }

  void CheckBlocks(const at::Tensor& whole, const at::Tensor& part, const char* name, const char* whole_name,
                   const char* part_name) const {
    CheckTensor(whole, name);
    CheckTensor(part, name);
    TORCH_CHECK(whole.scalar_type() == part.scalar_type() && whole.numel() == part.numel() * size_,
                "backend hierarchical: ", name, ": the ", whole_name, " (", whole.scalar_type(), " ", whole.sizes(),
                ") is not ", size_, " times the ", part_name, " (", part.scalar_type(), " ", part.sizes(), ")");
  }

  static void CheckReduction(OpType operation, const c10d::ReduceOp& reduction, const at::Tensor& tensor) {
    TORCH_CHECK(IsReductionDefined(kName, reduction.op_, tensor.scalar_type()), c10d::opTypeToString(operation), ": ",
                ReductionName(reduction.op_), " of ", tensor.scalar_type(), " is not defined on backend ", kName);
  }

  std::atomic<std::chrono::milliseconds> timeout_;
  const std::shared_ptr<LivenessMonitor> monitor_;
  const BackendPtr local_, between_, flat_;

  // By whoever runs a collective.
  TwoLevels levels_;
  std::string failure_;

  shm::WorkQueue queue_;  // runs what is left before the rest goes
};

}  // namespace

absl::StatusOr<c10::intrusive_ptr<c10d::Backend>> MakeHierarchicalBackend(const c10::intrusive_ptr<c10d::Store>& store,
                                                                          int rank, const Hosts& hosts,
                                                                          const HierarchicalBackendOptions& options) {
  const auto part = [&](const std::string& name) { return c10::make_intrusive<c10d::PrefixStore>(name, store); };
  const int host = hosts.of[rank], world_size = static_cast<int>(hosts.of.size());
  const std::vector<int> mates = hosts.ranks(host);
  const int me = static_cast<int>(std::find(mates.begin(), mates.end(), rank) - mates.begin());

  HierarchicalBackend::Links links;
  links.levels.lanes = world_size;
  for (int h = 0; h < hosts.count(); ++h) {
    links.levels.lanes = std::min(links.levels.lanes, static_cast<int>(hosts.ranks(h).size()));
  }
  absl::Status status;
  if (mates.size() > 1) {
    ShmBackendOptions shm;
    shm.timeout = options.timeout;
    shm.check_shapes = options.check_shapes;
    shm.names = mates;
    auto local = MakeShmBackend(part(absl::StrCat("host/", host)), me, static_cast<int>(mates.size()), shm);
    status = local.status();
    if (local.ok()) links.levels.local = *std::move(local);
  }
  const auto meeting_store = part("levels");
  Meeting meeting(*meeting_store, kName, rank, world_size, Meeting::Clock::now() + options.timeout);
  LOCKSTEP_RETURN_IF_ERROR(meeting.Agree("local", std::string(status.message())));
  try {
    if (hosts.count() > 1 && me < links.levels.lanes) {
      links.levels.between = options.make_network_backend(part(absl::StrCat("lane/", me)), host, hosts.count());
    }
    links.flat = options.make_network_backend(part("flat"), rank, world_size);
  } catch (const std::exception& e) {
    return absl::UnavailableError(absl::StrCat(kName, ": ", FirstLine(e.what())));
  }
  return c10::intrusive_ptr<c10d::Backend>(
      c10::make_intrusive<HierarchicalBackend>(hosts, rank, std::move(links), options));
}

}  // namespace lockstep
