#pragma once

#include <memory>
#include <string>
#include <vector>

#include "lockstep/comm/collectives.h"
#include "lockstep/ddp/reducer.h"

namespace c10d {
class CommHookInterface;
class Logger;
class Reducer;
}  // namespace c10d

namespace lockstep {

struct TorchReducerOptions {
  size_t bucket_cap_bytes = 25 << 20;
  size_t first_bucket_cap_bytes = 1 << 20;
  bool find_unused_parameters = false;
  std::shared_ptr<c10d::CommHookInterface> hook;  ///< As in BucketedReducerOptions.
};

/// LibTorch's `c10d::Reducer`, which Python's DistributedDataParallel is made of, as a Reducer. Gradients are copied
/// out of its buckets, since C++ optimizers can't clear gradients that are views. It has no weights, and parameters
/// must not be frozen or unfrozen later. An error on one rank leaves the others waiting.
class TorchReducer : public Reducer {
 public:
  /// As BucketedReducer's.
  TorchReducer(const std::vector<NamedParameter>& parameters, ProcessGroupPtr group, TorchReducerOptions options = {});
  ~TorchReducer() override;

  void PrepareForBackward(const std::vector<at::Tensor>& outputs) override;
  void PrepareForAccumulation(const std::vector<at::Tensor>& outputs) override {}
  /// Throws unless `weight` is nothing.
  void SetWeight(std::optional<double> weight) override;
  void Abandon(const std::string& why) override;

 private:
  const bool find_unused_parameters_;
  std::shared_ptr<c10d::Reducer> reducer_;  // null with a null group
  std::shared_ptr<c10d::Logger> logger_;    // which it can't do without
};

}  // namespace lockstep
