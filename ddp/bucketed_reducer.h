#pragma once

#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include <memory>
#include <string>
#include <vector>

#include "lockstep/checkpoint/stateful.h"
#include "lockstep/comm/collectives.h"
#include "lockstep/ddp/internal/backward_watch.h"
#include "lockstep/ddp/internal/gradient_memory.h"
#include "lockstep/ddp/internal/unused_parameters.h"
#include "lockstep/ddp/reducer.h"
#include "lockstep/ddp/reducer_statistics.h"

namespace c10d {
class CommHookInterface;
}

namespace lockstep {

struct BucketedReducerOptions {
  size_t bucket_cap_bytes = 25 << 20;       ///< Of every bucket but the first of its dtype and device.
  size_t first_bucket_cap_bytes = 1 << 20;  ///< Small, so that communication starts early in backward.
  /// After the first backward buckets are made anew, in the order in which rank 0's gradients became ready. Not with
  /// find_unused_parameters, where that order may change.
  bool rebuild_buckets = true;
  /// Parameters may get no gradient in a backward. They count as zero where others have one; where none has, grad() is
  /// left alone. Costs a walk over the graph and one more small reduction. Without it such a parameter is an error.
  bool find_unused_parameters = false;
  /// Every backward uses the same parameters, each as often as in the first one, in which nothing overlaps. Serves
  /// parameters that get several gradients in one backward (activation checkpoints) and, without the costs of
  /// find_unused_parameters, those that never get one. Wins over
  /// find_unused_parameters.
  bool static_graph = false;
  /// Communicates a bucket in place of the all-reduce (see all_reduce_hook.h); null: all-reduce.
  std::shared_ptr<c10d::CommHookInterface> hook;
};

/// Gathers gradients in flat buckets and reduces each bucket while backward goes on (Li et al., "PyTorch Distributed",
/// VLDB 2020). Buckets are launched in their order, which is the same on all ranks.
///
/// Gradients live in the buckets' memory: after a backward, `grad()` of each parameter is a tensor of its own over a
/// part of a bucket, with the parameter's strides. `zero_grad(false)` keeps it and the next backward accumulates in
/// place; after `zero_grad()` the fresh gradient is copied in once, or made there. A gradient that you keep is
/// overwritten by the next backward: clone it. Gradients are multiplied by their weight before they are summed, which
/// keeps half types from overflowing. Sparse gradients are reduced one by one at the end.
///
/// Parameters may be frozen and unfrozen between steps, alike on all ranks; PrepareForBackward then makes the buckets
/// anew. When something goes wrong on one rank, every rank throws at the end of that backward, and the next one is
/// sound.
///
/// A null group makes a reducer that does nothing. Only one reducer may serve a parameter at a time.
class BucketedReducer : public Reducer, public Stateful, private internal::BackwardWatch::Client {
 public:
  /// `parameters` must be the same list on all ranks; those that need no gradient are left out. Throws when none needs
  /// one, or when one has a reducer already.
  BucketedReducer(std::vector<NamedParameter> parameters, ProcessGroupPtr group, BucketedReducerOptions options = {});
  ~BucketedReducer() override;

  void PrepareForBackward(const std::vector<at::Tensor>& outputs) override;
  void PrepareForAccumulation(const std::vector<at::Tensor>& outputs) override;
  void SetWeight(std::optional<double> weight) override;
  void Abandon(const std::string& why) override;

  /// The order of the buckets and what static_graph has learned, so that a run that goes on adds in the same order.
  Value SaveState() override;
  /// Between two backwards. InvalidArgument, and nothing is changed, for a state of other parameters or options.
  absl::Status LoadState(const Value& state) override;

  /// The hook, if it has a state; else null.
  Stateful* stateful_hook() const;
  /// Number of buckets.
  size_t num_buckets() const { return buckets_.size(); }
  /// The parameters of each bucket, in the order of their memory.
  std::vector<std::vector<std::string>> bucket_names() const;
  /// A copy; `last` is empty before the first backward.
  ReducerStatistics statistics() const;

 private:
  static constexpr size_t kNoBucket = static_cast<size_t>(-1);

  /// A parameter that needs a gradient.
  struct Slot {
    size_t parameter = 0;         ///< Index into parameters_.
    size_t bucket = kNoBucket;    ///< None when the gradient is sparse, or never there.
    at::Tensor alias;             ///< Its part of the bucket, shaped like the parameter.
    int expected = 1;             ///< Gradients that it gets in a backward.
    int fired = 0;                ///< That it got in this one.
    bool ready = false;           ///< Its part of the bucket is filled.
    bool assumed_unused = false;  ///< Ready because the graph doesn't reach it.
    bool lends = true;            ///< Its part of the bucket may be lent to autograd.
    bool used = false;            ///< Since the last averaged backward, on this rank.
    at::Tensor kept;              ///< What grad() was, in case that no rank has used it.
  };
  struct Bucket {
    at::Tensor flat;       ///< The gradients of its parameters, one after the other, and a number more.
    at::Tensor gradients;  ///< The same without that number.
    std::vector<size_t> slots;
    std::vector<size_t> offsets, lengths;  ///< In elements.
    size_t pending = 0;                    ///< Slots that are not ready.
    c10::intrusive_ptr<c10d::Work> work;   ///< Its reduction, once launched.
    c10::intrusive_ptr<c10::ivalue::Future> hook_result;
  };
  struct DoneTimes;

  // internal/backward_watch.h
  void OnBackwardBegin() override;
  bool IsEmptyBackward() override;
  void OnGradient(size_t index, const at::Tensor& incoming) override;
  void OnLocalGradient(size_t index) override;
  void OnBackwardEnd() override;

  const NamedParameter& Named(const Slot& slot) const { return parameters_[slot.parameter]; }
  bool IsLearning() const { return options_.static_graph && !learned_; }

  // Layout.
  void MakeSlots();
  std::vector<size_t> ReverseOrder() const;
  void BuildBuckets(const std::vector<size_t>& order);
  void MoveBucket(size_t bucket);
  void RebuildBuckets();
  bool IsFreezingChanged() const;

  // A backward.
  void Arm();
  void CheckGradient(const Slot& slot) const;
  void Fill(size_t index);
  void MakeWritable(size_t index);
  void MarkReady(size_t index);
  void MarkUnused(size_t index);
  void LaunchReadyBuckets();
  void Launch(size_t bucket);
  void Complete(const std::string& problem);
  void EndUnfinished();
  void EndCollectives(bool problem);
  bool WaitForCollectives();
  void TakeBackUnused();
  void ReduceSparse();
  void Learn();
  void CountTimes();
  std::string MissingGradients() const;

  /// Every rank tells the others what is wrong, and which parameters it has frozen. Throws if anything is wrong, if
  /// they have not frozen alike, or if one of them is in the middle of a backward. Collective.
  void AgreeOrThrow(const std::string& problem, bool in_backward);

  const std::vector<NamedParameter> parameters_;  // frozen ones too, each once
  const ProcessGroupPtr group_;
  const BucketedReducerOptions options_;

  std::vector<Slot> slots_;
  std::vector<Bucket> buckets_;
  std::vector<size_t> order_;  // slots, as the buckets were made of them
  bool has_sparse_ = false;

  bool armed_ = false;               // a backward is to be averaged
  bool filled_ = false;              // it has made a gradient ready
  bool finished_ = false;            // some backward has come to its end
  bool rebuilt_ = false;             // buckets are in the order of readiness
  bool learned_ = false;             // static_graph: the first backward is over
  size_t next_bucket_ = 0;           // to be launched
  std::vector<size_t> ready_order_;  // slots
  internal::Reached reached_;        // by the forwards since the last averaged backward

  std::optional<double> weight_;
  at::Tensor factor_;      // gradients are multiplied by it; undefined: by one; a scalar on the CPU
  bool ignore_ = false;    // the weight is 0
  bool averages_ = false;  // the backend divides, and gradients are not multiplied
  bool on_shm_ = false;    // tensors are reduced by our own backend

  // What ranks tell each other in each backward: its last element, that something is wrong; before it, if needed, which
  // slots were used. Where only the former is needed it travels in the last bucket and costs nothing.
  bool report_in_bucket_ = false;
  at::Tensor report_;
  c10::intrusive_ptr<c10d::Work> report_work_;

  internal::GradientMemory memory_;  // place i is slot i's
  std::shared_ptr<DoneTimes> done_times_;
  ReducerStatistics statistics_;
  internal::BackwardWatch watch_;  // last: it may call us until it is gone
};

}  // namespace lockstep
