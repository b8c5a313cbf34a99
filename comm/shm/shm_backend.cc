#include "lockstep/comm/shm/shm_backend.h"

#include <ATen/Functions.h>
#include <c10/core/GradMode.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <atomic>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/base/error_text.h"
#include "lockstep/base/status_macros.h"
#include "lockstep/comm/definedness.h"
#include "lockstep/comm/flight_recorder.h"
#include "lockstep/comm/shm/internal/exchange.h"
#include "lockstep/comm/shm/internal/mailbox.h"
#include "lockstep/comm/shm/internal/peers.h"
#include "lockstep/comm/shm/internal/rounds.h"
#include "lockstep/comm/shm/internal/tensor_memory.h"
#include "lockstep/comm/shm/internal/work_queue.h"

namespace lockstep {
namespace {

using c10d::OpType;
using shm::Call;
using shm::Exchange;
using Tensors = std::vector<at::Tensor>;
using WorkPtr = c10::intrusive_ptr<c10d::Work>;

/// Above it a collective is worth waking a thread for.
constexpr size_t kLargeBytes = 1 << 20;

Exchange::Block BlockOf(const at::Tensor& tensor) {
  return {static_cast<char*>(tensor.data_ptr()), static_cast<int64_t>(tensor.nbytes())};
}

/// Copies back into the caller's tensors what was received in contiguous stand-ins.
class Outputs {
 public:
  at::Tensor Contiguous(const at::Tensor& output, bool keep_values = false) {
    if (output.is_contiguous()) return output;
    pairs_.emplace_back(output, keep_values ? output.contiguous() : at::empty(output.sizes(), output.options()));
    return pairs_.back().second;
  }
  void CopyBack() const {
    const at::NoGradGuard no_grad;
    for (const auto& [output, contiguous] : pairs_) output.detach().copy_(contiguous);
  }

 private:
  std::vector<std::pair<at::Tensor, at::Tensor>> pairs_;
};

/// The last of several works that run in order, with the results of all.
class LastWork : public c10d::Work {
 public:
  LastWork(WorkPtr last, Tensors outputs)
      : Work(-1, c10d::OpType::COALESCED), last_(std::move(last)), outputs_(std::move(outputs)) {}
  bool isCompleted() override { return last_->isCompleted(); }
  bool isSuccess() const override { return last_->isSuccess(); }
  std::exception_ptr exception() const override { return last_->exception(); }
  bool wait(std::chrono::milliseconds timeout) override { return last_->wait(timeout); }
  void synchronize() override {}
  Tensors result() override { return outputs_; }
  uint64_t getSequencenumber() const override { return last_->getSequencenumber(); }
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override {
    return last_->getFuture()->then([outputs = outputs_](c10::ivalue::Future&) { return c10::IValue(outputs); },
                                    c10::ListType::create(c10::TensorType::get()));
  }

 private:
  const WorkPtr last_;
  const Tensors outputs_;
};

class ShmBackend : public c10d::Backend {
 public:
  ShmBackend(std::unique_ptr<shm::Peers> peers, int rank, int world_size, const ShmBackendOptions& options)
      : Backend(rank, world_size),
        timeout_(options.timeout),
        recorder_(options.recorder),
        peers_(std::move(peers)),
        rounds_(*peers_, options.check_shapes),
        memory_(*peers_),
        exchange_(*peers_, rounds_, memory_),
        mailbox_(*peers_),
        queue_("shm") {}

  const std::string getBackendName() const override { return "shm"; }
  void setTimeout(std::chrono::milliseconds timeout) override { timeout_ = timeout; }
  void setSequenceNumberForGroup() override {}
  uint64_t getSequenceNumberForGroup() override { return queue_.last_sequence(); }
  void abort() override {
    rounds_.Abort("aborted");
    mailbox_.Abort();
  }
  void GiveUp(const std::string& reason) { peers_->Fail(reason); }
  bool supportsTensorAlloc(c10::DeviceIndex) override { return true; }
  at::Tensor allocateTensor(long size, at::TensorOptions options) override { return memory_.Allocate(size, options); }

  WorkPtr allreduce(Tensors& tensors, const c10d::AllreduceOptions& options) override {
    const at::Tensor& tensor = Single(tensors, "allreduce");
    CheckReduction(OpType::ALLREDUCE, options.reduceOp, tensor);
    return ReduceTo(OpType::ALLREDUCE, tensor, options.reduceOp, -1, options.timeout);
  }

  WorkPtr allreduce_coalesced(Tensors& tensors, const c10d::AllreduceCoalescedOptions& options) override {
    for (const at::Tensor& tensor : tensors) {
      CheckTensor(tensor, "allreduce_coalesced");
      CheckReduction(OpType::ALLREDUCE_COALESCED, options.reduceOp, tensor);
    }
    return Together(tensors, [&](at::Tensor& tensor) {
      return ReduceTo(OpType::ALLREDUCE_COALESCED, tensor, options.reduceOp, -1, options.timeout);
    });
  }

  WorkPtr reduce(Tensors& tensors, const c10d::ReduceOptions& options) override {
    const at::Tensor& tensor = Single(tensors, "reduce");
    CheckReduction(OpType::REDUCE, options.reduceOp, tensor);
    return ReduceTo(OpType::REDUCE, tensor, options.reduceOp, Root(options.rootRank, "reduce"), options.timeout);
  }

  WorkPtr broadcast(Tensors& tensors, const c10d::BroadcastOptions& options) override {
    const at::Tensor& tensor = Single(tensors, "broadcast");
    const int root = Root(options.rootRank, "broadcast");
    return Submit({OpType::BROADCAST, tensor, options.timeout, root}, {tensor}, [this, tensor, root](const Call& call) {
      Outputs outputs;
      const at::Tensor data = outputs.Contiguous(tensor, /*keep_values=*/root == rank_);
      Exchange::Plan plan;
      if (root == rank_) {
        plan.give = {BlockOf(data)};
      } else {
        plan.take.resize(size_);
        plan.take[root] = BlockOf(data);
      }
      exchange_.Pull(call, plan);
      if (root != rank_) outputs.CopyBack();
    });
  }

  WorkPtr allgather(std::vector<Tensors>& outputs, Tensors& inputs, const c10d::AllgatherOptions& options) override {
    const at::Tensor& input = Single(inputs, "allgather");
    TORCH_CHECK(outputs.size() == 1, "backend shm: allgather: one list of outputs, not ", outputs.size());
    CheckList(outputs[0], input, "allgather", "outputs");
    return AllGather(OpType::ALLGATHER, outputs[0], input, options.timeout);
  }

  WorkPtr _allgather_base(at::Tensor& output, at::Tensor& input, const c10d::AllgatherOptions& options) override {
    CheckBlocks(output, input, "_allgather_base", "output", "input");
    return AllGather(OpType::_ALLGATHER_BASE, {output}, input, options.timeout);
  }

  WorkPtr allgather_coalesced(std::vector<Tensors>& outputs, Tensors& inputs,
                              const c10d::AllgatherOptions& options) override {
    TORCH_CHECK(outputs.size() == static_cast<size_t>(size_),
                "backend shm: allgather_coalesced: a list of outputs per rank");
    for (size_t i = 0; i < inputs.size(); ++i) {
      for (const Tensors& list : outputs) {
        TORCH_CHECK(list.size() == inputs.size(), "backend shm: allgather_coalesced: an output per input");
        CheckAlike(list[i], inputs[i], "allgather_coalesced");
      }
    }
    size_t i = 0;
    return Together(inputs, [&](at::Tensor& input) {
      Tensors mine;
      for (const Tensors& list : outputs) mine.push_back(list[i]);
      ++i;
      return AllGather(OpType::ALLGATHER_COALESCED, mine, input, options.timeout);
    });
  }

  WorkPtr allgather_into_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                          const c10d::AllgatherOptions& options) override {
    TORCH_CHECK(outputs.size() == inputs.size(), "backend shm: allgather_into_tensor_coalesced: an output per input");
    for (size_t i = 0; i < inputs.size(); ++i) {
      CheckBlocks(outputs[i], inputs[i], "allgather_into_tensor_coalesced", "output", "input");
    }
    size_t i = 0;
    return Together(inputs, [&](at::Tensor& input) {
      return AllGather(OpType::_ALLGATHER_BASE, {outputs[i++]}, input, options.timeout);
    });
  }

  WorkPtr gather(std::vector<Tensors>& outputs, Tensors& inputs, const c10d::GatherOptions& options) override {
    const at::Tensor& input = Single(inputs, "gather");
    const int root = Root(options.rootRank, "gather");
    Tensors mine;
    if (root == rank_) {
      TORCH_CHECK(outputs.size() == 1, "backend shm: gather: the root gives one list of outputs, not ", outputs.size());
      mine = outputs[0];
      CheckList(mine, input, "gather", "outputs");
    } else {
      TORCH_CHECK(outputs.empty(), "backend shm: gather: only the root, rank ", root, ", gives outputs");
    }
    return Submit({OpType::GATHER, input, options.timeout, root}, mine, [this, input, mine](const Call& call) {
      Outputs outputs;
      const at::Tensor data = input.contiguous();
      Exchange::Plan plan;
      plan.give = {BlockOf(data)};
      for (const at::Tensor& output : mine) plan.take.push_back(BlockOf(outputs.Contiguous(output)));
      exchange_.Pull(call, plan);
      outputs.CopyBack();
    });
  }

  WorkPtr scatter(Tensors& outputs, std::vector<Tensors>& inputs, const c10d::ScatterOptions& options) override {
    const at::Tensor& output = Single(outputs, "scatter");
    const int root = Root(options.rootRank, "scatter");
    Tensors mine;
    if (root == rank_) {
      TORCH_CHECK(inputs.size() == 1, "backend shm: scatter: the root gives one list of inputs, not ", inputs.size());
      mine = inputs[0];
      CheckList(mine, output, "scatter", "inputs");
    } else {
      TORCH_CHECK(inputs.empty(), "backend shm: scatter: only the root, rank ", root, ", gives inputs");
    }
    return Submit({OpType::SCATTER, output, options.timeout, root}, {output},
                  [this, output, mine, root](const Call& call) {
                    Outputs outputs;
                    Exchange::Plan plan;
                    plan.same = plan.one_tensor = false;
                    Tensors data;
                    for (const at::Tensor& input : mine) data.push_back(input.contiguous());
                    for (const at::Tensor& input : data) plan.give.push_back(BlockOf(input));
                    plan.take.resize(size_);
                    plan.take[root] = BlockOf(outputs.Contiguous(output));
                    exchange_.Pull(call, plan);
                    outputs.CopyBack();
                  });
  }

  WorkPtr reduce_scatter(Tensors& outputs, std::vector<Tensors>& inputs,
                         const c10d::ReduceScatterOptions& options) override {
    const at::Tensor& output = Single(outputs, "reduce_scatter");
    TORCH_CHECK(inputs.size() == 1, "backend shm: reduce_scatter: one list of inputs, not ", inputs.size());
    CheckList(inputs[0], output, "reduce_scatter", "inputs");
    return ReduceScatter(OpType::REDUCE_SCATTER, output, inputs[0], options);
  }

  WorkPtr _reduce_scatter_base(at::Tensor& output, at::Tensor& input,
                               const c10d::ReduceScatterOptions& options) override {
    CheckBlocks(input, output, "_reduce_scatter_base", "input", "output");
    return ReduceScatter(OpType::_REDUCE_SCATTER_BASE, output, {input}, options);
  }

  WorkPtr reduce_scatter_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                          const c10d::ReduceScatterOptions& options) override {
    TORCH_CHECK(outputs.size() == inputs.size(), "backend shm: reduce_scatter_tensor_coalesced: an output per input");
    for (size_t i = 0; i < inputs.size(); ++i) {
      CheckBlocks(inputs[i], outputs[i], "reduce_scatter_tensor_coalesced", "input", "output");
    }
    size_t i = 0;
    return Together(outputs, [&](at::Tensor& output) {
      return ReduceScatter(OpType::_REDUCE_SCATTER_BASE, output, {inputs[i++]}, options);
    });
  }

  WorkPtr alltoall(Tensors& outputs, Tensors& inputs, const c10d::AllToAllOptions& options) override {
    TORCH_CHECK(outputs.size() == static_cast<size_t>(size_) && inputs.size() == outputs.size(),
                "backend shm: alltoall: one input and one output per rank");
    for (const Tensors* list : {&outputs, &inputs}) {
      for (const at::Tensor& tensor : *list) {
        CheckTensor(tensor, "alltoall");
        TORCH_CHECK(tensor.scalar_type() == inputs[0].scalar_type(),
                    "backend shm: alltoall: tensors of different dtypes");
      }
    }
    return Submit({OpType::ALLTOALL, inputs[0], options.timeout}, outputs,
                  [this, to = outputs, from = inputs](const Call& call) {
                    Outputs outputs;
                    Exchange::Plan plan;
                    plan.same = plan.one_tensor = false;
                    Tensors data;
                    for (const at::Tensor& input : from) data.push_back(input.contiguous());
                    for (const at::Tensor& input : data) plan.give.push_back(BlockOf(input));
                    for (const at::Tensor& output : to) plan.take.push_back(BlockOf(outputs.Contiguous(output)));
                    exchange_.Pull(call, plan);
                    outputs.CopyBack();
                  });
  }

  WorkPtr alltoall_base(at::Tensor& output, at::Tensor& input, std::vector<int64_t>& output_splits,
                        std::vector<int64_t>& input_splits, const c10d::AllToAllOptions& options) override {
    CheckTensor(input, "alltoall_base");
    CheckTensor(output, "alltoall_base");
    TORCH_CHECK(input.scalar_type() == output.scalar_type(), "backend shm: alltoall_base: tensors of different dtypes");
    const std::vector<int64_t> give = Splits(input, input_splits, "input");
    const std::vector<int64_t> take = Splits(output, output_splits, "output");
    return Submit({OpType::ALLTOALL_BASE, input, options.timeout}, {output},
                  [this, output, input, give, take](const Call& call) {
                    Outputs outputs;
                    const at::Tensor from = input.contiguous(), to = outputs.Contiguous(output);
                    Exchange::Plan plan;
                    plan.same = false;
                    plan.give = Cut(from, give);
                    plan.take = Cut(to, take);
                    exchange_.Pull(call, plan);
                    outputs.CopyBack();
                  });
  }

  WorkPtr barrier(const c10d::BarrierOptions& options) override {
    return Submit({OpType::BARRIER, at::Tensor(), options.timeout}, {},
                  [this](const Call& call) { exchange_.Barrier(call); });
  }

  void monitoredBarrier(const c10d::BarrierOptions& options, bool) override { barrier(options)->wait(); }

  WorkPtr send(Tensors& tensors, int to, int tag) override {
    const at::Tensor& tensor = Single(tensors, "send");
    const int peer = Root(to, "send");
    return mailbox_.Send(tensor.contiguous(), peer, tag, timeout_, Recorded(OpType::SEND, tensor, peer));
  }

  WorkPtr recv(Tensors& tensors, int from, int tag) override { return Receive(tensors, Root(from, "recv"), tag); }
  WorkPtr recvAnysource(Tensors& tensors, int tag) override { return Receive(tensors, -1, tag); }

 private:
  /// `tensor` is for the record and for the size; it is compared between ranks but for all-to-all, where it may differ.
  struct What {
    OpType operation;
    const at::Tensor& tensor;
    std::chrono::milliseconds timeout;
    int root = -1;
    c10d::ReduceOp::RedOpType reduction = c10d::ReduceOp::UNUSED;
  };

  Call CallOf(const What& what) const {
    Call call;
    call.timeout = what.timeout == c10d::kUnsetTimeout ? timeout_.load() : what.timeout;
    shm::Descriptor& d = call.what;
    d.operation = static_cast<uint8_t>(what.operation);
    d.reduction = what.reduction;
    d.root = what.root;
    if (!what.tensor.defined()) return call;
    d.dtype = static_cast<int8_t>(what.tensor.scalar_type());
    if (what.operation == OpType::ALLTOALL || what.operation == OpType::ALLTOALL_BASE) return call;
    const auto sizes = what.tensor.sizes();
    d.elements = what.tensor.numel();
    d.dims = sizes.size();
    std::copy_n(sizes.begin(), std::min<size_t>(sizes.size(), shm::Descriptor::kMaxDims), d.shape.begin());
    return call;
  }

  template <typename Body>
  class CollectiveWork : public shm::QueuedWork {
   public:
    CollectiveWork(ShmBackend& backend, OpType operation, Tensors outputs, const Call& call, uint64_t entry, Body body)
        : QueuedWork(backend.queue_, backend.rank_, operation, std::move(outputs)),
          backend_(backend),
          call_(call),
          entry_(entry),
          body_(std::move(body)) {}

   private:
    void Run(bool in_caller) override {
      call_.may_spin = in_caller;
      const std::optional<Body> body = std::exchange(body_, std::nullopt);
      backend_.RunCall(call_, entry_, *body);
    }

    ShmBackend& backend_;
    Call call_;
    const uint64_t entry_;  // in the flight recorder
    std::optional<Body> body_;
  };

  template <typename Body>
  WorkPtr Submit(const What& what, Tensors outputs, Body body) {
    Call call = CallOf(what);
    return queue_.Add(what.tensor.defined() && what.tensor.nbytes() >= kLargeBytes, [&](uint64_t sequence) {
      call.what.sequence = sequence;
      const uint64_t entry =
          recorder_ ? recorder_->Asked(GroupInRecords(), sequence, what.operation, what.reduction, what.tensor) : 0;
      return c10::make_intrusive<CollectiveWork<Body>>(*this, what.operation, std::move(outputs), call, entry,
                                                       std::move(body));
    });
  }

  template <typename Body>
  void RunCall(const Call& call, uint64_t entry, const Body& body) {
    if (recorder_) recorder_->Begun(entry);
    try {
      TORCH_CHECK_WITH(DistBackendError, failure_.empty(), "shm: ", shm::Rounds::Name(call.what),
                       ": the group has failed before: ", failure_);
      body(call);
      if (recorder_) recorder_->Ended(entry);
    } catch (const std::exception& e) {
      const std::string reason = FirstLine(e.what());
      if (failure_.empty()) failure_ = reason;
      peers_->Fail(reason);
      if (recorder_) {
        recorder_->Ended(entry, reason);
        recorder_->Dump();
      }
      throw;
    }
  }

  WorkPtr ReduceTo(OpType operation, const at::Tensor& tensor, const c10d::ReduceOp& reduction, int root,
                   std::chrono::milliseconds timeout) {
    return Submit({operation, tensor, timeout, root, reduction.op_}, Tensors(1, tensor),
                  [this, tensor, root](const Call& call) {
                    if (tensor.is_contiguous()) {
                      exchange_.AllReduce(call, static_cast<char*>(tensor.data_ptr()));
                      return;
                    }
                    Outputs outputs;
                    const at::Tensor data = outputs.Contiguous(tensor, /*keep_values=*/true);
                    exchange_.AllReduce(call, static_cast<char*>(data.data_ptr()));
                    if (root < 0 || root == rank_) outputs.CopyBack();
                  });
  }

  /// Into a tensor per rank, or one for all.
  WorkPtr AllGather(OpType operation, const Tensors& to, const at::Tensor& input, std::chrono::milliseconds timeout) {
    return Submit({operation, input, timeout}, to, [this, to, input](const Call& call) {
      Outputs outputs;
      const at::Tensor from = input.contiguous();
      Exchange::Plan plan;
      plan.give = {BlockOf(from)};
      if (to.size() == 1 && size_ > 1) {
        plan.take = Cut(outputs.Contiguous(to[0]), std::vector<int64_t>(size_, from.numel()));
      } else {
        for (const at::Tensor& output : to) plan.take.push_back(BlockOf(outputs.Contiguous(output)));
      }
      exchange_.Pull(call, plan);
      outputs.CopyBack();
    });
  }

  WorkPtr ReduceScatter(OpType operation, const at::Tensor& output, const Tensors& from,
                        const c10d::ReduceScatterOptions& options) {
    CheckReduction(operation, options.reduceOp, output);
    return Submit({operation, output, options.timeout, -1, options.reduceOp.op_}, {output},
                  [this, output, from](const Call& call) {
                    Outputs outputs;
                    Exchange::Plan plan;
                    plan.same = false;
                    plan.reduce = true;
                    Tensors data;
                    for (const at::Tensor& input : from) data.push_back(input.contiguous());
                    plan.one_tensor = data.size() == 1;
                    if (plan.one_tensor) {
                      plan.give = Cut(data[0], std::vector<int64_t>(size_, output.numel()));
                    } else {
                      for (const at::Tensor& input : data) plan.give.push_back(BlockOf(input));
                    }
                    plan.take = {BlockOf(outputs.Contiguous(output))};
                    exchange_.Pull(call, plan);
                    outputs.CopyBack();
                  });
  }

  WorkPtr Receive(Tensors& tensors, int from, int tag) {
    const at::Tensor& tensor = Single(tensors, "recv");
    TORCH_CHECK(tensor.is_contiguous(), "backend shm: recv: the tensor must be contiguous");
    const OpType operation = from < 0 ? OpType::RECVANYSOURCE : OpType::RECV;
    return mailbox_.Receive(tensor, from, tag, timeout_, Recorded(operation, tensor, from));
  }

  /// Puts a message on record; to be called at its end.
  shm::Mailbox::OnDone Recorded(OpType operation, const at::Tensor& tensor, int peer) {
    if (!recorder_) return nullptr;
    const uint64_t entry =
        recorder_->Asked(GroupInRecords(), queue_.last_sequence(), operation, c10d::ReduceOp::UNUSED, tensor, peer);
    return [recorder = recorder_, entry](const std::string& error) {
      recorder->Ended(entry, error);
      if (!error.empty()) recorder->Dump();
    };
  }

  std::string GroupInRecords() const { return pg_uid_ + " over shm"; }

  /// One collective for each tensor, and a work for them all.
  template <typename Start>
  WorkPtr Together(Tensors& tensors, const Start& start) {
    TORCH_CHECK(!tensors.empty(), "backend shm: a coalesced collective of no tensors");
    WorkPtr last;
    Tensors outputs;
    for (at::Tensor& tensor : tensors) {
      last = start(tensor);
      for (at::Tensor& output : last->result()) outputs.push_back(std::move(output));
    }
    return c10::make_intrusive<LastWork>(std::move(last), std::move(outputs));
  }

  std::vector<Exchange::Block> Cut(const at::Tensor& tensor, const std::vector<int64_t>& elements) const {
    std::vector<Exchange::Block> blocks;
    char* data = static_cast<char*>(tensor.data_ptr());
    for (int64_t n : elements) {
      blocks.push_back({data, n * static_cast<int64_t>(tensor.element_size())});
      data += blocks.back().bytes;
    }
    return blocks;
  }

  /// Elements for each rank, from numbers of rows; equal ones when none are given.
  std::vector<int64_t> Splits(const at::Tensor& tensor, const std::vector<int64_t>& rows, const char* name) const {
    if (rows.empty()) {
      TORCH_CHECK(tensor.dim() > 0 && tensor.size(0) % size_ == 0, "backend shm: alltoall_base: the ", name,
                  "'s first size, ", tensor.dim() > 0 ? tensor.size(0) : 0, ", is no multiple of the number of ranks, ",
                  size_);
      return std::vector<int64_t>(size_, tensor.numel() / size_);
    }
    TORCH_CHECK(rows.size() == static_cast<size_t>(size_), "backend shm: alltoall_base: ", rows.size(), " ", name,
                " splits for ", size_, " ranks");
    int64_t sum = 0;
    for (int64_t n : rows) {
      TORCH_CHECK(n >= 0, "backend shm: alltoall_base: a negative ", name, " split: ", n);
      sum += n;
    }
    TORCH_CHECK(tensor.dim() > 0 && sum == tensor.size(0), "backend shm: alltoall_base: the ", name, " splits sum to ",
                sum, ", and the tensor has ", tensor.dim() > 0 ? tensor.size(0) : 0, " rows");
    const int64_t row = tensor.size(0) == 0 ? 0 : tensor.numel() / tensor.size(0);
    std::vector<int64_t> elements;
    for (int64_t n : rows) elements.push_back(n * row);
    return elements;
  }

  int Root(int64_t rank, const char* name) const {
    TORCH_CHECK(rank >= 0 && rank < size_, "backend shm: ", name, ": rank ", rank, " in a group of ", size_);
    return static_cast<int>(rank);
  }

  static void CheckTensor(const at::Tensor& tensor, const char* name) {
    TORCH_CHECK(tensor.defined(), "backend shm: ", name, ": an undefined tensor");
    TORCH_CHECK(tensor.layout() == at::kStrided, "backend shm: ", name, ": a ", tensor.layout(),
                " tensor; only dense ones are moved");
    TORCH_CHECK(tensor.device().is_cpu(), "backend shm: ", name, ": a tensor on ", tensor.device(),
                "; only CPU tensors are moved");
  }

  static const at::Tensor& Single(const Tensors& tensors, const char* name) {
    TORCH_CHECK(tensors.size() == 1, "backend shm: ", name, ": one tensor, not ", tensors.size());
    CheckTensor(tensors[0], name);
    return tensors[0];
  }

  static void CheckAlike(const at::Tensor& tensor, const at::Tensor& like, const char* name) {
    CheckTensor(tensor, name);
    TORCH_CHECK(tensor.scalar_type() == like.scalar_type() && tensor.numel() == like.numel(), "backend shm: ", name,
                ": a ", tensor.scalar_type(), " tensor of ", tensor.sizes(), " beside a ", like.scalar_type(),
                " tensor of ", like.sizes());
  }

  void CheckList(const Tensors& list, const at::Tensor& like, const char* name, const char* what) const {
    TORCH_CHECK(list.size() == static_cast<size_t>(size_), "backend shm: ", name, ": ", list.size(), " ", what, " for ",
                size_, " ranks");
    for (const at::Tensor& tensor : list) CheckAlike(tensor, like, name);
  }

  void CheckBlocks(const at::Tensor& whole, const at::Tensor& part, const char* name, const char* whole_name,
                   const char* part_name) const {
    CheckTensor(whole, name);
    CheckTensor(part, name);
    TORCH_CHECK(whole.scalar_type() == part.scalar_type() && whole.numel() == part.numel() * size_,
                "backend shm: ", name, ": the ", whole_name, " (", whole.scalar_type(), " ", whole.sizes(), ") is not ",
                size_, " times the ", part_name, " (", part.scalar_type(), " ", part.sizes(), ")");
  }

  static void CheckReduction(OpType operation, const c10d::ReduceOp& reduction, const at::Tensor& tensor) {
    TORCH_CHECK(IsReductionDefined("shm", reduction.op_, tensor.scalar_type()), c10d::opTypeToString(operation), ": ",
                ReductionName(reduction.op_), " of ", tensor.scalar_type(), " is not defined on backend shm");
  }

  std::atomic<std::chrono::milliseconds> timeout_;
  const std::shared_ptr<FlightRecorder> recorder_;
  const std::unique_ptr<shm::Peers> peers_;

  // By whoever runs a collective.
  shm::Rounds rounds_;
  shm::TensorMemory memory_;
  Exchange exchange_;
  std::string failure_;

  // These run what is left before the rest goes.
  shm::Mailbox mailbox_;
  shm::WorkQueue queue_;
};

}  // namespace

absl::StatusOr<c10::intrusive_ptr<c10d::Backend>> MakeShmBackend(const c10::intrusive_ptr<c10d::Store>& store, int rank,
                                                                 int world_size, const ShmBackendOptions& options) {
  LOCKSTEP_ASSIGN_OR_RETURN(auto peers, shm::Peers::Connect(store, rank, world_size, options.timeout, options.names));
  return c10::intrusive_ptr<c10d::Backend>(
      c10::make_intrusive<ShmBackend>(std::move(peers), rank, world_size, options));
}

void GiveUpShmBackend(c10d::Backend& backend, const std::string& reason) {
  dynamic_cast<ShmBackend&>(backend).GiveUp(reason);
}

}  // namespace lockstep
