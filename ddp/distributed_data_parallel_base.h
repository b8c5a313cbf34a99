#pragma once

#include <torch/nn/module.h>

#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "lockstep/comm/collectives.h"
#include "lockstep/comm/join.h"
#include "lockstep/ddp/bucketed_reducer.h"
#include "lockstep/ddp/reducer.h"

namespace lockstep {

struct DistributedDataParallelOptions {
  BucketedReducerOptions reducer;    ///< Buckets, unused parameters, static graph, communication hook.
  bool broadcast_parameters = true;  ///< At the start: rank 0's parameters and buffers on all ranks.
  bool broadcast_buffers = true;     ///< Before each training forward: rank 0's buffers on all ranks.
  std::set<std::string> ignored;     ///< Parameters and buffers, by name, that are left alone altogether.
  /// Makes the reducer; null: a BucketedReducer with the options above.
  std::function<std::unique_ptr<Reducer>(std::vector<NamedParameter>, const ProcessGroupPtr&)> make_reducer;
};

/// What DistributedDataParallel is, whatever the type of the module.
class DistributedDataParallelBase : public torch::nn::Module, public Joinable {
 public:
  void train(bool on = true) override { module_->train(on); }
  bool is_training() const noexcept override { return module_->is_training(); }

  /// Rank 0's buffers on all ranks, now. Call it before an evaluation of a module with batch norm that is not
  /// synchronised: since the last training forward each rank has updated its running statistics with its own batch. A
  /// module whose training forward doesn't read its buffers (batch norm doesn't) needs no more than that, so that
  /// `broadcast_buffers` may be off. Collective.
  void SyncBuffers();

  /// Throws on all ranks, naming the first parameter and the ranks, unless all ranks' parameters are equal bit for bit.
  /// Collective.
  void CheckParametersEqual() const;

  /// What this rank's gradients are multiplied by before they are summed, from the next forward on; nothing: one over
  /// the world size. To weigh ranks by their samples, so that gradients are those of one process on the whole batch,
  /// however it was cut: SampleWeight(samples, group).
  void SetWeight(std::optional<double> weight);

  Reducer& reducer() { return *reducer_; }
  /// Null when another reducer was made.
  BucketedReducer* bucketed_reducer() { return dynamic_cast<BucketedReducer*>(reducer_.get()); }
  const ProcessGroupPtr& group() const { return group_; }

  /// While it lives, forwards are such that their backwards accumulate this rank's gradients and average nothing; the
  /// first backward whose forward ran after it averages what was accumulated.
  class NoSync {
   public:
    explicit NoSync(DistributedDataParallelBase& ddp) : ddp_(ddp), before_(ddp.sync_) { ddp_.sync_ = false; }
    ~NoSync() { ddp_.sync_ = before_; }
    NoSync(const NoSync&) = delete;
    NoSync& operator=(const NoSync&) = delete;

   private:
    DistributedDataParallelBase& ddp_;
    const bool before_;
  };

  void SetJoinState(const JoinState* state) override;
  void OnJoinEnd(const JoinState& last) override;

 protected:
  DistributedDataParallelBase(std::shared_ptr<torch::nn::Module> module, ProcessGroupPtr group,
                              DistributedDataParallelOptions options);

  void BeforeForward();
  /// `opaque`: a type in the outputs that could not be looked into, if there is one.
  void AfterForward(const std::vector<at::Tensor>& outputs, const std::string& opaque);

 private:
  const std::shared_ptr<torch::nn::Module> module_;
  const ProcessGroupPtr group_;
  const DistributedDataParallelOptions options_;
  std::vector<NamedParameter> named_;
  std::vector<at::Tensor> synced_buffers_;
  std::unique_ptr<Reducer> reducer_;
  bool sync_ = true;
  std::optional<double> weight_;

  // A window is what one averaging accumulates.
  std::optional<JoinState> join_;
  bool window_open_ = false;       // the last forward was one under NoSync
  bool window_has_batch_ = false;  // some forward of it counts
  int window_ranks_ = 0;           // that had batches when it began
};

/// This rank's share of all ranks' samples: its weight when its loss is a mean over its samples. 0 where there are
/// none. Collective.
double SampleWeight(int64_t samples, const ProcessGroupPtr& group);

}  // namespace lockstep
