#pragma once

#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include <memory>
#include <mutex>
#include <vector>

#include "lockstep/comm/collectives.h"
#include "lockstep/ddp/reducer.h"

namespace torch::autograd {
struct Node;
}

namespace lockstep {

struct BucketedReducerOptions {
  size_t bucket_cap_bytes = 25 << 20;       ///< Of every bucket but the first.
  size_t first_bucket_cap_bytes = 1 << 20;  ///< Small, so that communication starts early in backward.
};

/// Gathers gradients in flat buckets, in about the order in which backward makes them ready (the reverse of the
/// parameters'), and all-reduces each bucket while backward goes on (Li et al., "PyTorch Distributed", VLDB 2020).
///
/// Gradients live in the buckets' memory: after a backward, `grad()` of each parameter is a tensor of its own over a
/// part of a bucket. `zero_grad(false)` keeps it and the next backward accumulates in place; after `zero_grad()` the
/// fresh gradient is copied in once. Gradients are divided by the world size before they are summed, which keeps half
/// types from overflowing.
///
/// Hooks are on the parameters until the reducer is destroyed; only one reducer may serve a parameter at a time.
class BucketedReducer : public Reducer {
 public:
  /// `parameters` must be the same list on all ranks; those that need no gradient are left out. A null group makes
  /// a reducer that does nothing. Throws when no parameter needs a gradient.
  BucketedReducer(std::vector<NamedParameter> parameters, ProcessGroupPtr group, BucketedReducerOptions options = {});
  ~BucketedReducer() override;
  BucketedReducer(const BucketedReducer&) = delete;
  BucketedReducer& operator=(const BucketedReducer&) = delete;

  void PrepareForBackward() override;

  /// Number of buckets.
  size_t num_buckets() const { return buckets_.size(); }

 private:
  struct Bucket {
    at::Tensor flat;                      ///< The gradients of its parameters, one after the other.
    std::vector<size_t> parameters;       ///< Indices into slots_.
    size_t pending = 0;                   ///< Parameters of this backward without a gradient yet.
    c10::intrusive_ptr<c10d::Work> work;  ///< Its all-reduce, once launched.
  };
  struct Slot {
    NamedParameter named;
    size_t bucket = 0;
    at::Tensor alias;  ///< The parameter's part of the bucket, shaped like the parameter.
    bool ready = false;
    std::shared_ptr<torch::autograd::Node> accumulator;  ///< Where the hook is; kept alive by us.
    uintptr_t hook = 0;
  };

  void BuildBuckets(const BucketedReducerOptions& options);
  void AddHooks();
  void MarkReady(size_t slot);
  void LaunchReadyBuckets();
  void FinishBackward();
  std::string MissingGradients() const;

  const ProcessGroupPtr group_;
  std::vector<Slot> slots_;
  std::vector<Bucket> buckets_;

  std::mutex mutex_;        // hooks may run on a thread per device
  bool armed_ = false;      // PrepareForBackward was called and its backward has not finished
  bool started_ = false;    // that backward has made a gradient ready
  size_t next_bucket_ = 0;  // to be launched; the same order on all ranks
};

}  // namespace lockstep
