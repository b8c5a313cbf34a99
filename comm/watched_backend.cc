#include "lockstep/comm/watched_backend.h"

#include <absl/strings/str_cat.h>
#include <absl/strings/str_join.h>
#include <c10/util/Exception.h>

#include <atomic>
#include <cstdlib>
#include <functional>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/base/error_text.h"
#include "lockstep/comm/definedness.h"
#include "lockstep/comm/flight_recorder.h"
#include "lockstep/comm/liveness.h"
#include "lockstep/comm/lookout.h"

namespace lockstep {
namespace {

using c10d::OpType;
using Tensors = std::vector<at::Tensor>;
using WorkPtr = c10::intrusive_ptr<c10d::Work>;

/// What a backend's works need, also after it.
struct Shared {
  Shared(std::string backend_name, std::shared_ptr<LivenessMonitor> monitor_, std::chrono::milliseconds timeout_,
         std::shared_ptr<FlightRecorder> recorder_)
      : name(std::move(backend_name)),
        monitor(std::move(monitor_)),
        timeout(timeout_),
        recorder(std::move(recorder_)) {}

  /// Collectives need every rank, a send or receive the one at its other end. On NCCL nobody waits here.
  bool Wait(c10d::Work& work, OpType operation, int peer) {
    if (name == "nccl") return work.wait();
    if (c10d::isP2POp(operation)) return Lookout::OfThisProcess().Wait(*monitor, work, peer);
    return name == "gloo" ? monitor->Wait(work) : work.wait();
  }

  [[noreturn]] void Fail(const std::string& what, uint64_t sequence, uint64_t entry, const std::string& error) {
    std::string reason = absl::StrCat(name, ": ", what);
    const bool late = error.find("imed out") != std::string::npos;
    const std::vector<int> behind = late ? monitor->Behind(sequence) : std::vector<int>();
    if (!behind.empty()) {
      absl::StrAppend(&reason, " timed out after ", timeout.load().count(),
                      " ms: these ranks did not come: ", absl::StrJoin(behind, ", "));
      monitor->Explain(reason, /*communication=*/false);  // leaves it for the others
    } else {
      absl::StrAppend(&reason, ": ", monitor->Explain(error, IsCommunicationError(error)));
    }
    if (recorder) {
      recorder->Ended(entry, reason);
      recorder->Dump();
    }
    TORCH_CHECK_WITH(DistBackendError, false, reason);
    std::abort();
  }

  const std::string name;
  const std::shared_ptr<LivenessMonitor> monitor;
  std::atomic<std::chrono::milliseconds> timeout;
  const std::shared_ptr<FlightRecorder> recorder;
};

class WatchedWork : public c10d::Work {
 public:
  WatchedWork(WorkPtr work, std::shared_ptr<Shared> shared, OpType operation, std::string what, int peer,
              uint64_t sequence, uint64_t entry)
      : Work(-1, operation),
        work_(std::move(work)),
        shared_(std::move(shared)),
        what_(std::move(what)),
        peer_(peer),
        sequence_(sequence),
        entry_(entry) {}

  ~WatchedWork() override {
    // Of one that nobody waited for. On NCCL it says more than is known: the device may not be done.
    if (shared_->recorder && !ended_ && work_->isCompleted() && shared_->name != "nccl") {
      shared_->recorder->Ended(entry_, work_->isSuccess() ? "" : "it failed, and nobody waited for it");
    }
  }

  bool isCompleted() override { return work_->isCompleted(); }
  bool isSuccess() const override { return work_->isSuccess(); }
  std::exception_ptr exception() const override { return work_->exception(); }
  int sourceRank() const override { return work_->sourceRank(); }
  Tensors result() override { return work_->result(); }
  void synchronize() override { work_->synchronize(); }
  void blockCurrentStream() override { work_->blockCurrentStream(); }
  void abort() override { work_->abort(); }
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override { return work_->getFuture(); }
  c10::intrusive_ptr<c10::ivalue::Future> getFutureResult() override { return work_->getFutureResult(); }
  float getDuration() const override { return work_->getDuration(); }
  uint64_t getSequencenumber() const override { return sequence_; }

  bool wait(std::chrono::milliseconds timeout) override {
    try {
      const bool done = timeout == kNoTimeout ? shared_->Wait(*work_, opType_, peer_) : work_->wait(timeout);
      if (shared_->recorder) shared_->recorder->Ended(entry_);
      ended_ = true;
      return done;
    } catch (const std::exception& e) {
      ended_ = true;
      shared_->Fail(what_, sequence_, entry_, FirstLine(e.what()));
    }
  }

 private:
  const WorkPtr work_;
  const std::shared_ptr<Shared> shared_;
  const std::string what_;
  const int peer_;
  const uint64_t sequence_, entry_;
  std::atomic<bool> ended_{false};  // and on record so
};

class WatchedBackend : public c10d::Backend {
 public:
  WatchedBackend(c10::intrusive_ptr<c10d::Backend> backend, std::shared_ptr<LivenessMonitor> monitor,
                 std::chrono::milliseconds timeout, std::shared_ptr<FlightRecorder> recorder)
      : Backend(backend->getRank(), backend->getSize()),
        backend_(std::move(backend)),
        shared_(
            std::make_shared<Shared>(backend_->getBackendName(), std::move(monitor), timeout, std::move(recorder))) {}

  const std::string getBackendName() const override { return backend_->getBackendName(); }
  c10::intrusive_ptr<Options> getBackendOptions() override { return backend_->getBackendOptions(); }
  bool supportsSplitting() const override { return backend_->supportsSplitting(); }
  bool supportsCoalescing() const override { return backend_->supportsCoalescing(); }
  bool supportsTimeEstimation() const override { return backend_->supportsTimeEstimation(); }
  void setTimeout(std::chrono::milliseconds timeout) override {
    shared_->timeout = timeout;
    backend_->setTimeout(timeout);
  }
  void startCoalescing() override { backend_->startCoalescing(); }
  WorkPtr endCoalescing() override { return backend_->endCoalescing(); }
  void setSequenceNumberForGroup() override { backend_->setSequenceNumberForGroup(); }
  uint64_t getSequenceNumberForGroup() override { return backend_->getSequenceNumberForGroup(); }
  void registerOnCompletionHook(std::function<void(std::shared_ptr<c10d::WorkInfo>)>&& hook) override {
    backend_->registerOnCompletionHook(std::move(hook));
  }
  void waitForPendingWorks() override { backend_->waitForPendingWorks(); }
  void enableCollectivesTiming() override { backend_->enableCollectivesTiming(); }
  c10::intrusive_ptr<Backend> split(const c10::intrusive_ptr<c10d::Store>& store, const std::vector<int>& ranks,
                                    const c10::intrusive_ptr<Options>& options) override {
    return backend_->split(store, ranks, options);
  }
  c10::intrusive_ptr<Backend> merge(const c10::intrusive_ptr<c10d::Store>& store,
                                    const c10::intrusive_ptr<Options>& options, const int& rank,
                                    const int& size) override {
    return backend_->merge(store, options, rank, size);
  }
  void setGroupUid(const std::string& uid) override {
    Backend::setGroupUid(uid);
    backend_->setGroupUid(uid);
  }
  void eagerConnectSingleDevice(at::Device device) override { backend_->eagerConnectSingleDevice(device); }
  c10d::ErrorType getError() override { return backend_->getError(); }
  std::shared_ptr<c10::Allocator> getMemAllocator() override { return backend_->getMemAllocator(); }
  at::Tensor allocateTensor(long size, at::TensorOptions options) override {
    return backend_->allocateTensor(size, options);
  }
  bool supportsTensorAlloc(c10::DeviceIndex device) override { return backend_->supportsTensorAlloc(device); }
  void abort() override {
    shared_->monitor->Abort();  // Gloo has no abort of its own
    backend_->abort();
  }
  void shutdown() override { backend_->shutdown(); }

  WorkPtr broadcast(Tensors& tensors, const c10d::BroadcastOptions& options) override {
    return Watch(OpType::BROADCAST, First(tensors), [&] { return backend_->broadcast(tensors, options); });
  }
  WorkPtr allreduce(Tensors& tensors, const c10d::AllreduceOptions& options) override {
    return Watch(
        OpType::ALLREDUCE, First(tensors), [&] { return backend_->allreduce(tensors, options); }, options.reduceOp.op_);
  }
  WorkPtr allreduce_sparse(Tensors& tensors, const c10d::AllreduceOptions& options) override {
    return Watch(
        OpType::_ALLREDUCE_SPARSE, First(tensors), [&] { return backend_->allreduce_sparse(tensors, options); },
        options.reduceOp.op_);
  }
  WorkPtr allreduce_coalesced(Tensors& tensors, const c10d::AllreduceCoalescedOptions& options) override {
    return Watch(
        OpType::ALLREDUCE_COALESCED, First(tensors), [&] { return backend_->allreduce_coalesced(tensors, options); },
        options.reduceOp.op_);
  }
  WorkPtr reduce(Tensors& tensors, const c10d::ReduceOptions& options) override {
    return Watch(
        OpType::REDUCE, First(tensors), [&] { return backend_->reduce(tensors, options); }, options.reduceOp.op_);
  }
  WorkPtr allgather(std::vector<Tensors>& outputs, Tensors& inputs, const c10d::AllgatherOptions& options) override {
    return Watch(OpType::ALLGATHER, First(inputs), [&] { return backend_->allgather(outputs, inputs, options); });
  }
  WorkPtr _allgather_base(at::Tensor& output, at::Tensor& input, const c10d::AllgatherOptions& options) override {
    return Watch(OpType::_ALLGATHER_BASE, input, [&] { return backend_->_allgather_base(output, input, options); });
  }
  WorkPtr allgather_coalesced(std::vector<Tensors>& outputs, Tensors& inputs,
                              const c10d::AllgatherOptions& options) override {
    return Watch(OpType::ALLGATHER_COALESCED, First(inputs),
                 [&] { return backend_->allgather_coalesced(outputs, inputs, options); });
  }
  WorkPtr allgather_into_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                          const c10d::AllgatherOptions& options) override {
    return Watch(OpType::COALESCED, First(inputs),
                 [&] { return backend_->allgather_into_tensor_coalesced(outputs, inputs, options); });
  }
  WorkPtr gather(std::vector<Tensors>& outputs, Tensors& inputs, const c10d::GatherOptions& options) override {
    return Watch(OpType::GATHER, First(inputs), [&] { return backend_->gather(outputs, inputs, options); });
  }
  WorkPtr scatter(Tensors& outputs, std::vector<Tensors>& inputs, const c10d::ScatterOptions& options) override {
    return Watch(OpType::SCATTER, First(outputs), [&] { return backend_->scatter(outputs, inputs, options); });
  }
  WorkPtr reduce_scatter(Tensors& outputs, std::vector<Tensors>& inputs,
                         const c10d::ReduceScatterOptions& options) override {
    return Watch(
        OpType::REDUCE_SCATTER, First(outputs), [&] { return backend_->reduce_scatter(outputs, inputs, options); },
        options.reduceOp.op_);
  }
  WorkPtr _reduce_scatter_base(at::Tensor& output, at::Tensor& input,
                               const c10d::ReduceScatterOptions& options) override {
    return Watch(
        OpType::_REDUCE_SCATTER_BASE, output, [&] { return backend_->_reduce_scatter_base(output, input, options); },
        options.reduceOp.op_);
  }
  WorkPtr reduce_scatter_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                          const c10d::ReduceScatterOptions& options) override {
    return Watch(
        OpType::COALESCED, First(outputs),
        [&] { return backend_->reduce_scatter_tensor_coalesced(outputs, inputs, options); }, options.reduceOp.op_);
  }
  WorkPtr alltoall_base(at::Tensor& output, at::Tensor& input, std::vector<int64_t>& output_splits,
                        std::vector<int64_t>& input_splits, const c10d::AllToAllOptions& options) override {
    return Watch(OpType::ALLTOALL_BASE, input,
                 [&] { return backend_->alltoall_base(output, input, output_splits, input_splits, options); });
  }
  WorkPtr alltoall(Tensors& outputs, Tensors& inputs, const c10d::AllToAllOptions& options) override {
    return Watch(OpType::ALLTOALL, First(inputs), [&] { return backend_->alltoall(outputs, inputs, options); });
  }
  WorkPtr barrier(const c10d::BarrierOptions& options) override {
    return Watch(OpType::BARRIER, at::Tensor(), [&] { return backend_->barrier(options); });
  }
  void monitoredBarrier(const c10d::BarrierOptions& options, bool all_ranks) override {
    backend_->monitoredBarrier(options, all_ranks);
  }
  WorkPtr send(Tensors& tensors, int to, int tag) override {
    return Watch(
        OpType::SEND, First(tensors), [&] { return backend_->send(tensors, to, tag); }, c10d::ReduceOp::UNUSED, to);
  }
  WorkPtr recv(Tensors& tensors, int from, int tag) override {
    return Watch(
        OpType::RECV, First(tensors), [&] { return backend_->recv(tensors, from, tag); }, c10d::ReduceOp::UNUSED, from);
  }
  WorkPtr recvAnysource(Tensors& tensors, int tag) override {
    return Watch(OpType::RECVANYSOURCE, First(tensors), [&] { return backend_->recvAnysource(tensors, tag); });
  }

 private:
  static at::Tensor First(const Tensors& tensors) { return tensors.empty() ? at::Tensor() : tensors[0]; }

  template <typename Start>
  WorkPtr Watch(OpType operation, const at::Tensor& tensor, const Start& start,
                c10d::ReduceOp::RedOpType reduction = c10d::ReduceOp::UNUSED, int peer = LivenessMonitor::Looks::kAny) {
    const bool p2p = c10d::isP2POp(operation);
    const uint64_t sequence = p2p ? sequence_.load() : ++sequence_;
    shared_->monitor->SetProgress(sequence);
    std::string what = c10d::opTypeToString(operation);
    if (p2p) {
      if (peer >= 0) absl::StrAppend(&what, operation == OpType::SEND ? " to rank " : " from rank ", peer);
    } else {
      absl::StrAppend(&what, " #", sequence);
    }
    if (tensor.defined()) {
      absl::StrAppend(&what, " (", reduction == c10d::ReduceOp::UNUSED ? "" : ReductionName(reduction),
                      reduction == c10d::ReduceOp::UNUSED ? "" : " of ", c10::toString(tensor.scalar_type()), " [",
                      absl::StrJoin(tensor.sizes(), ", "), "])");
    }
    FlightRecorder* recorder = shared_->recorder.get();
    const uint64_t entry = recorder != nullptr ? recorder->Asked(pg_uid_ + " over " + shared_->name, sequence,
                                                                 operation, reduction, tensor, peer)
                                               : 0;
    WorkPtr work;
    try {
      work = start();
    } catch (const std::exception& e) {
      // What is wrong with the arguments, LibTorch says well enough itself.
      if (!IsCommunicationError(e.what())) throw;
      shared_->Fail(what, sequence, entry, FirstLine(e.what()));
    }
    if (recorder != nullptr) recorder->Begun(entry);
    return c10::make_intrusive<WatchedWork>(std::move(work), shared_, operation, std::move(what), peer, sequence,
                                            entry);
  }

  const c10::intrusive_ptr<c10d::Backend> backend_;
  const std::shared_ptr<Shared> shared_;
  std::atomic<uint64_t> sequence_{0};
};

}  // namespace

c10::intrusive_ptr<c10d::Backend> WatchBackend(c10::intrusive_ptr<c10d::Backend> backend,
                                               std::shared_ptr<LivenessMonitor> monitor,
                                               std::chrono::milliseconds timeout,
                                               std::shared_ptr<FlightRecorder> recorder) {
  return c10::make_intrusive<WatchedBackend>(std::move(backend), std::move(monitor), timeout, std::move(recorder));
}

}  // namespace lockstep
